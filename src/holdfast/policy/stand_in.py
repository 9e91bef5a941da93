"""What stands for turns that gave way: an extract, or what somebody wrote with what that leaves out; sources behind it.

The ledger, the user's words and the coverage lines are made over the whole head from the log, whoever wrote the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.model.branch import Branch
from holdfast.model.entries import Compaction
from holdfast.model.messages import Message
from holdfast.model.parts import Text
from holdfast.model.projected import edited, native_of
from holdfast.model.slots import Slot
from holdfast.model.target import Written
from holdfast.policy.draft import Draft
from holdfast.policy.extract import EXTRACT, extract, supplement
from holdfast.policy.neutralise import harmless_summary
from holdfast.policy.restored import restored
from holdfast.policy.settings import SCAN
from holdfast.view.clipping import clipped
from holdfast.view.tokens import count, measure

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
    sources = list(_sources(draft))
    budget = draft.own(cap) - sum(map(count, sources))
    texts = [*_words(draft, head, keep, budget, written), *_files(draft, head), *sources]
    summary = Message("user", tuple(map(Text, harmless_summary(texts, draft.branch))))
    size = measure(summary).size
    made = Compaction(keep, summary, size, before=draft.estimate)
    if written is None:
        return made
    made = replace(made, by=written.by, native=written.native)
    native = native_of(made)
    return replace(made, size=draft.own(native.tokens)) if native is not None and native.tokens > 0 else made


def anchor_of(branch: Branch) -> str:
    """Return the text that a later summary brings up to date: what somebody wrote for the one in force, or nothing.

    Of an extract it is nothing as long as all that it stands for can be read again, which makes a better summary; what
    is longer than ``SCAN`` would be read for ever, and the extract is the text.
    """
    made = branch.compaction
    texts = [] if made is None or made.summary is None else [one for one in made.summary.parts if isinstance(one, Text)]
    if made is None or not texts:
        return ""
    if made.by in WRITERS:
        return texts[min(1, len(texts) - 1)].text  # ours stands behind its preface; an imported one alone
    said, text = branch.slots.slice(branch.pinned, branch.keep), texts[0].text
    if not text.startswith(EXTRACT) or sum(slot.size for slot in said) <= SCAN:
        return ""
    return text.partition("\n")[2]  # behind its preface


def told(draft: Draft, keep: int) -> list[Slot]:
    """Return the whole head from the log, with long words of the user as they were shown: spilled, not whole."""
    branch = draft.branch
    head = branch.slots.slice(branch.pinned, keep)
    for index, edits in branch.edits.items():
        if branch.pinned <= index < keep and branch.messages[index].starts_turn:
            head[index - branch.pinned] = edited(branch.slots[index], edits)
    return head


def _words(draft: Draft, head: Sequence[Slot], keep: int, budget: int, written: Written | None) -> Iterator[str]:
    """Yield the texts of the summary: an extract, or a preface, what was written, and what that leaves out."""
    tail, settings = draft.branch.slots.slice(keep), draft.settings
    if written is None or not written.text.strip():
        yield extract(head, tail, budget, settings)
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
    """Return the files of the head that the agent touched last, as it read them."""
    settings, messages = draft.settings, [slot.message for slot in head]
    return restored(messages, settings.restore_files, settings.restore_tokens, draft.scale)


def _sources(draft: Draft) -> Iterator[str]:
    """Yield the texts from their source, as far as their budgets go: of each, and of all together."""
    settings = draft.settings
    left = draft.own(min(settings.restore_sources_together, draft.room.share(settings.restore_share)))
    for text in draft.world.restored:
        most = min(draft.own(settings.restore_source_tokens), left)
        size = count(text)
        shown = text if size <= most else clipped(text, most - _LINE, "this")
        left -= count(shown)
        if left < 0:
            return
        yield shown
