"""What is known of each model that a conversation asked: how it counts, and what overflows told of its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from holdfast.state.calibration.calibration import Anchor, Gauge, Learned
from holdfast.state.codec.reading import convert
from holdfast.state.entries import KNOWN, Note

if TYPE_CHECKING:
    from holdfast.state.branch.branch import Branch

MODELS = 8
"""[H] Models beside the one asked last of which a branch knows what they told: no conversation goes among more."""


class Known(Struct, frozen=True, omit_defaults=True):
    """What was told of one model, in the window that was configured for it: it counts when that is asked again."""

    model: str
    window: int = 0
    """As ``Request.window`` of the newest request to it."""
    gauge: Gauge = Gauge()
    learned: Learned = Learned()
    measured: Anchor | None = None
    """As of the branch: of another one no count is a measure."""


def known_of(branch: Branch, model: str) -> Known:
    """Return what is known of ``model``, asked last or before; where either has no name it is taken to be the last."""
    last = Known(branch.model, branch.window, branch.gauge, branch.learned)
    if branch.model == model or not model or (branch.seen and not branch.model):
        return last
    found = next((known for known in branch.aside if known.model == model), Known(model) if branch.model else last)
    return replace(found, measured=None)


def all_known(branch: Branch) -> tuple[Known, ...]:
    """Return what is known of each model that told anything, the one asked last at the end, whatever branch it is.

    What waits for the next answer is not of it: that may be another model's, or one to another request.
    """
    every = [replace(known, measured=None) for known in _every(branch)]
    return tuple([known for known in every if (known.gauge, known.learned) != (Gauge(), Learned())])


def knowing(branch: Branch, every: Sequence[Known]) -> Branch:
    """Return the branch knowing of models what ``every`` says and no more."""
    own, others = _of(branch.model, every), [known for known in every if known.model != branch.model]
    return replace(branch, window=own.window, gauge=own.gauge, learned=own.learned, aside=tuple(others[-MODELS:]))


def asking(branch: Branch, model: str, window: int) -> Branch:
    """Return the branch with what is known of ``model`` in force, which is asked next; that of the last is put aside.

    No count of another model's is a measure of it: the newest of its own is. What overflows told is old once another
    ``window`` was configured.
    """
    if model != branch.model:
        every = _every(branch)
        branch = knowing(replace(branch, model=model, measured=_of(model, every).measured), every)
    is_other = 0 < branch.window != window > 0
    return replace(branch, window=window, learned=_form(branch.learned) if is_other else branch.learned)


def forgotten(branch: Branch) -> Branch:
    """Return the branch without what overflows told of any model; how each counts stands."""
    aside = tuple(replace(one, learned=_form(one.learned)) for one in branch.aside)
    return replace(branch, learned=_form(branch.learned), aside=aside)


def formed(branch: Branch, note: Note) -> Branch:
    """Return the branch knowing of the model asked last which form its server wants, as ``note`` says."""
    wanted = {name: note.data.get(name) is True for name in ("mends", "judges")}
    return replace(branch, learned=replace(branch.learned, **wanted))


def _form(learned: Learned) -> Learned:
    """Return what of ``learned`` is not of sizes."""
    return Learned(mends=learned.mends, judges=learned.judges)


def noted(branch: Branch) -> Note:
    """Return the note by which another branch knows of models what this one does."""
    return Note(KNOWN, data={"models": to_builtins(all_known(branch))})


def as_noted(branch: Branch, note: Note) -> Branch:
    """Return the branch knowing of models what ``noted`` says; the same branch where that cannot be read."""
    try:
        every = convert(note.data.get("models"), list[Known])
    except (ValueError, TypeError):
        return branch
    return knowing(branch, every)


def _every(branch: Branch) -> tuple[Known, ...]:
    """Return what is known of each model here, the one asked last at the end."""
    last = _last(branch)
    last = replace(last, learned=replace(last.learned, overflows=0, doubted=0))
    is_told = replace(last, window=0) != Known(branch.model)
    return (*branch.aside, last) if branch.model and is_told else branch.aside


def _last(branch: Branch) -> Known:
    return Known(branch.model, branch.window, branch.gauge, branch.learned, branch.measured)


def _of(model: str, every: Sequence[Known]) -> Known:
    return next((known for known in every if known.model == model), Known(model))
