"""Cache breakpoints: where a request tells the provider to remember its prefix."""

from __future__ import annotations

from holdfast.model.branch import Branch, origins, patched_position
from holdfast.model.edits import Edit
from holdfast.model.plan import Options
from holdfast.model.target import Target
from holdfast.policy.settings import Settings


def breakpoints(branch: Branch, repair: tuple[Edit, ...], target: Target, settings: Settings, seen: int) -> Options:
    """Return the options with markers on the tail, on the tail of the request before, and behind the summary.

    The one on the old tail hits the cache however many blocks were added since; the one at the end of the frame and
    the one behind the summary survive the next compaction. None where the API has no explicit markers.
    """
    most = target.dialect.markers
    if most == 0:
        return Options()
    lead = branch.pinned + (branch.compaction is not None and branch.compaction.summary is not None)
    shift = lead - branch.keep
    if any(edit.span.part is None for edits in branch.edits.values() for edit in edits):
        return _by_origin(branch, repair, most)
    last = shift + len(branch.slots) - 1
    if last + 1 + sum(len(edit.put) - (edit.span.stop - edit.span.start) for edit in repair) <= 0:
        return Options()
    if settings.markers == "tail":
        return Options(markers=(patched_position(last, repair),))
    places = {last}
    if seen > branch.keep:
        places.add(shift + seen - 1)
    if lead > branch.pinned:
        places.add(lead - 1)
    chosen = sorted({patched_position(place, repair) for place in places})[-max(1, most - 1) :]
    return Options(markers=tuple(chosen), frame_marker=most > 1)


def _by_origin(branch: Branch, repair: tuple[Edit, ...], most: int) -> Options:
    """Return a marker on the tail, where recorded edits took whole slots and counting does not tell where it stands."""
    last = len(origins(branch)) - 1
    return Options(markers=(patched_position(last, repair),) if last >= 0 else (), frame_marker=most > 1)
