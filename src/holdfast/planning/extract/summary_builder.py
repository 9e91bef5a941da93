"""What stands for turns that gave way: an extract, or what somebody wrote with what that leaves out; sources behind it.

The ledger, the user's words and the coverage lines are made over the whole head from the log, whoever wrote the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import count, measure
from holdfast.messages.sized_message import Slot
from holdfast.messages.text.clipping import clipped
from holdfast.planning.builder import Draft
from holdfast.planning.extract.carried_summary import LEAST, SHARE, carried
from holdfast.planning.extract.extract import EXTRACT, extract, supplement
from holdfast.planning.extract.previous_summary import CARRIED, is_summary, newest_summary, summaries, unwrapped
from holdfast.planning.extract.restored_files import restored
from holdfast.planning.presets.overflow_replay import continuation
from holdfast.planning.settings import SCAN
from holdfast.planning.stages.escape_tags import harmless_summary
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import edited, native_of
from holdfast.state.edits import Edit
from holdfast.state.entries import Compaction
from holdfast.state.target import Written

PREFACE = (
    "The conversation before this point was replaced by this summary of it ({messages} messages). Whatever is not here "
    "can be read back with recall."
)
LEAST_BESIDE = 200
"""Estimator tokens under which nothing but the user's newest words is put beside a written summary. [H]"""
_LINE = 20
"""Estimator tokens of the line that says what of a text is left out."""
WRITERS = frozenset({"model", "hook"})
"""Who writes a text that a later summary brings up to date."""


def stand_in(draft: Draft, keep: int, cap: float, written: Written | None = None) -> Compaction | None:
    """Return the compaction that keeps from slot ``keep`` on, its summary in at most about ``cap`` tokens.

    ``written`` is what somebody made for it; without, it is an extract. Nothing where nothing was really said.
    """
    head = told(draft, keep)
    if not any(slot.message.text.strip() or slot.message.calls or slot.message.results for slot in head):
        return None
    files, sources = _files(draft, head), [*_sources(draft), *filter(None, [continuation(draft, keep)])]
    counted = [*files, *sources] if draft.settings.goal_share else sources
    budget = draft.own(cap) - sum(map(count, counted))
    texts = [*_words(draft, head, keep, budget, written), *files, *sources]
    summary = Message("user", tuple(map(Text, harmless_summary(texts, draft.branch))))
    size = measure(summary).size
    made = Compaction(keep, summary, size, before=draft.estimate)
    if written is None:
        return made
    made = replace(made, by=written.by, native=written.native, twin=0 if written.native is None else size)
    native = native_of(made)
    return replace(made, size=draft.own(native.tokens)) if native is not None and native.tokens > 0 else made


def anchor_of(branch: Branch) -> str:
    """Return the text that a later summary brings up to date: what somebody wrote for the one in force, or nothing.

    Of an extract it is nothing as long as all that it stands for can be read again, which makes a better summary; what
    is longer than ``SCAN`` would be read for ever, and the extract is the text.
    """
    made, texts = branch.compaction, _in_force(branch)
    if made is None or not texts:
        return ""
    if made.by in WRITERS:
        return _written(texts)
    said, text = branch.slots.slice(branch.pinned, branch.keep), texts[0]
    if not text.startswith(EXTRACT) or sum(slot.size for slot in said) <= SCAN:
        return ""
    behind_preface = text.partition("\n")[2]
    return "\n\n".join([behind_preface, *(text for text in texts if text.startswith(CARRIED))])


def earlier(branch: Branch, keep: int) -> str:
    """Return the summary of what came before that an extract of all before slot ``keep`` carries on, or nothing.

    It is the newest: one that the client sent since the last compaction, else the one in force if somebody wrote it;
    under an extract of ours the newest that gave way to it, else the one that it carries on.
    """
    texts = _in_force(branch)
    newest = newest_summary(branch.messages.slice(branch.pinned, keep))
    if not texts or texts[0].startswith(EXTRACT):
        return newest or next(summaries(texts), "")
    is_covered = newest == newest_summary(branch.messages.slice(branch.pinned, branch.keep))
    return _written(texts) if is_covered else newest


def _written(texts: Sequence[str]) -> str:
    """Return what somebody wrote for a summary with these texts: behind our preface, as a client wraps it, or alone."""
    if texts[0].startswith(PREFACE.partition("{")[0]):
        return texts[1] if len(texts) > 1 else ""
    return next(summaries(texts), "\n\n".join(texts))


def _in_force(branch: Branch) -> list[str]:
    """Return the texts of the summary in force."""
    made = branch.compaction
    parts = made.summary.parts if made is not None and made.summary is not None else ()
    return [part.text for part in parts if isinstance(part, Text)]


def told(draft: Draft, keep: int) -> list[Slot]:
    """Return the whole head from the log, with long words of the user as they were shown: spilled, not whole.

    An earlier summary is what it says, and whole.
    """
    branch = draft.branch
    return [
        _told(slot, branch.edits.get(index, ()))
        for index, slot in enumerate(branch.slots.slice(branch.pinned, keep), branch.pinned)
    ]


def _told(slot: Slot, edits: Sequence[Edit]) -> Slot:
    message = slot.message
    if not message.starts_turn:
        return slot
    shown = [one for one in edits if one.span.part is None or not is_summary(message.parts[one.span.part])]
    slot = edited(slot, shown) if shown else slot
    said = unwrapped(slot.message)
    return slot if said is slot.message else replace(slot, message=said)


def _words(draft: Draft, head: Sequence[Slot], keep: int, budget: int, written: Written | None) -> Iterator[str]:
    """Yield the texts of the summary: an extract, or a preface, what was written, and what that leaves out."""
    tail, settings = draft.branch.slots.slice(keep), draft.settings
    if written is None or not written.text.strip():
        before = carried(earlier(draft.branch, keep), min(budget, max(LEAST, int(budget * SHARE))))
        yield extract(head, tail, budget - count(before), settings, before)
        yield from [before] if before else []
        return
    yield PREFACE.format(messages=len(head))
    yield written.text.strip()
    left = budget - count(written.text)
    if left < LEAST_BESIDE and any(slot.message.starts_turn for slot in tail):
        return
    beside = supplement(head, tail, written.text, max(0, left), settings)
    if beside:
        yield beside


def _files(draft: Draft, head: Sequence[Slot]) -> tuple[str, ...]:
    """Return the files of the head that the agent touched last, as it read them.

    They stay within a share of the room where a goal or an overflow says how small the request must get.
    """
    settings, messages = draft.settings, [slot.message for slot in head]
    is_bounded = settings.goal_share or draft.world.rung == "compact"
    together = draft.share(settings.restore_share) if is_bounded else inf
    return restored(messages, settings.restore_files, settings.restore_tokens, draft.scale, together)


def _sources(draft: Draft) -> Iterator[str]:
    """Yield the texts from their source, as far as their budgets go: of each, and of all together."""
    settings = draft.settings
    left = draft.own(min(settings.restore_sources_together, draft.share(settings.restore_share)))
    for text in draft.world.restored:
        most = min(draft.own(settings.restore_source_tokens), left)
        size = count(text)
        shown = text if size <= most else clipped(text, most - _LINE, "this")
        left -= count(shown)
        if left < 0:
            return
        yield shown
