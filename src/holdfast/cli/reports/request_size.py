"""How large a request is, and what is in it: one measure for all commands, the one that decisions are made by."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.config import Catalog, Configuration
from holdfast.planning import budget as guard
from holdfast.planning.presets.presets import PRESETS
from holdfast.planning.settings import Settings
from holdfast.providers.recognize import APIS
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.branch.view import mark_at, project
from holdfast.state.calibration.token_estimate import cautious_ratio, estimate, is_same_model
from holdfast.state.edit_map import Edits
from holdfast.state.entries import Answer, Compaction, Decision, Entry, Failure, Request
from holdfast.state.target import Target
from holdfast.store.base import SessionInfo


class Measured(Struct, frozen=True):
    """How large the request is that a branch makes now, in tokens of the model."""

    tokens: int
    frame: int
    """Of system prompt and tools, as far as they are known."""
    scale: float
    """Tokens for one of the estimator's, in messages: by what was counted so far, and no more than ``tokens`` hold."""
    is_counted: bool
    """Whether ``tokens`` are what the provider counted of just this request."""

    def of(self, size: int) -> int:
        """Return the tokens of something that the estimator gives ``size``."""
        return round(self.scale * size)


PLAIN = Measured(0, 0, 1.0, is_counted=False)
"""The estimator's own tokens."""


def target_of(info: SessionInfo, branch: Branch, model: str | None, window: int | None, catalog: Catalog) -> Target:
    """Return where the next request of a stored session goes: to ``model``, or as it was recorded."""
    place = config.target(
        _api(branch), model or branch.model or info.model, window=window, frame=branch.frame, catalog=catalog
    )
    if window is not None or not branch.window or place.model != branch.model:
        return place
    as_recorded = replace(place.limits, window=branch.window, origin="as it was asked last")
    return place if place.limits.window == branch.window else replace(place, limits=as_recorded)


def _api(branch: Branch) -> str:
    """Return the API of the first message that came over one."""
    return next((slot.api for slot in project(branch) if slot.api in APIS), APIS[0])


def measured(branch: Branch, place: Target, settings: Settings = Settings()) -> Measured:
    """Return how large the request is that ``branch`` makes to ``place`` now."""
    place, anchor = guard.in_force(place, branch, settings), branch.anchor
    whole, frame, scale = estimate(branch, place), estimate(branch, place, 0), cautious_ratio(branch, place)
    is_counted = counted(branch) > 0 and is_same_model(branch, place)
    if anchor is not None and branch.held:
        scale = min(scale, max(0, whole - frame) / branch.held)
    return Measured(whole, frame, scale, is_counted)


def counted(branch: Branch) -> int:
    """Return the tokens that the provider counted of just the request that ``branch`` makes now; 0 where it did not."""
    anchor = branch.anchor
    return anchor.tokens if anchor is not None and anchor.held == branch.held else 0


def lacking(branch: Branch) -> int:
    """Return what the request that ``branch`` makes lacks of all that was said, in the estimator's tokens."""
    return (branch.sums[-1] if len(branch.slots) else 0) - branch.held


def take_all_back(branch: Branch) -> Branch:
    """Return ``branch`` as far as its size goes, with every decision and compaction taken back at once.

    The request that was counted last stands again where it showed everything that was said, as it does after an undo.
    Its messages are not shown anew: that would cost the whole history, and no size needs it. So ``keep`` is the end,
    and what stands before it has one digest.
    """
    count = len(branch.slots)
    whole = branch.sums[-1] if count else 0
    plain = replace(branch, edits=Edits(), compaction=None, keep=count, held=whole, native=0)
    told = branch.measured
    if told is None:
        return plain
    showed_all = 0 < told.slots <= count and told.held == branch.sums[told.slots - 1]
    mark = mark_at(plain, told.slots) if showed_all else b""
    return replace(plain, measured=replace(told, mark=mark, native=0 if showed_all else told.native))


def as_known_later(before: Branch, after: Branch) -> Branch:
    """Return ``before`` with what was learned of the model's tokens until ``after``, to compare the sizes of the two.

    What was counted of a request that still stands at ``before`` is its size; else the estimate is that of ``after``.
    """
    told = after.measured
    if before.anchor is not None:
        told = before.measured
    elif told is not None:
        told = replace(told, mark=b"")
    return replace(before, gauge=after.gauge, learned=after.learned, aside=after.aside, measured=told)


def settings_of(branch: Branch, known: Configuration) -> Settings:
    """Return the settings that requests of ``branch`` are planned by: of its own policy where that is a known one."""
    return known.policy(branch.policy if branch.policy in PRESETS else "holdfast").settings


def as_asked(info: SessionInfo, branch: Branch, known: Configuration) -> tuple[Target, Settings]:
    """Return where the next request of a stored session goes, as its last one did, and what it is planned by."""
    return target_of(info, branch, None, None, known.catalog), settings_of(branch, known)


class Places:
    """Where the next requests of many stored sessions go; what is alike is found out once, for it takes a while."""

    def __init__(self, known: Configuration) -> None:
        self._known = known
        self._found: dict[tuple[object, ...], tuple[Target, Settings]] = {}

    def __call__(self, info: SessionInfo, branch: Branch) -> tuple[Target, Settings]:
        """Return what ``as_asked`` does."""
        asked = _api(branch), info.model, branch.model, branch.window, branch.frame, branch.policy
        if asked not in self._found:
            self._found[asked] = as_asked(info, branch, self._known)
        return self._found[asked]


def measured_in(info: SessionInfo, branch: Branch) -> Measured:
    """Return how large the next request of a stored session is that goes where its last one went."""
    return measured(branch, *as_asked(info, branch, config.configuration()))


def ended(behind: Sequence[Entry]) -> Entry | None:
    """Return the answer to a request, or its failure, from the entries behind it; nothing where neither is told."""
    ends = (one for one in behind if isinstance(one.body, Answer | Failure | Request | Decision | Compaction))
    found = next(ends, None)
    return found if found is not None and isinstance(found.body, Answer | Failure) else None


def requested(entries: Sequence[Entry], at: int) -> Branch:
    """Return the branch of the request at place ``at`` of ``entries``, with what its end told of its size."""
    branch, end = Branch.build(entries[: at + 1]), ended(entries[at + 1 :])
    return branch if end is None else extend(branch, end)


def about(tokens: int, *, is_counted: bool = False) -> str:
    """Return a size as people read it; one that nobody counted has ``~`` before it."""
    return f"{tokens:,}" if is_counted else f"~{tokens:,}"
