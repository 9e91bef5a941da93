"""The projection made valid: repairs of what a branch shows, found again only for what is new."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from holdfast.messages.message import Message, media_of
from holdfast.messages.parts import Thinking
from holdfast.messages.size.image_size import is_over
from holdfast.messages.sized_message import Slot
from holdfast.messages.strip_foreign import may_think, native
from holdfast.normalize import ALONE, SIGNED, UNTHOUGHT, orphans, repairs
from holdfast.normalize.ids import calls_of, is_sent, server_ids
from holdfast.normalize.items import rules_of
from holdfast.normalize.pairing import RENAMED
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import base_mark, leading, messages_at, patched, project, shown, shown_slots
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, Settled
from holdfast.state.plan import Plan

APART = frozenset({"anthropic", "gemini"})
"""APIs whose bodies have a field for the system prompt, so that none stands first among the messages."""

_GROUPED = ALONE | {RENAMED}
"""Rules of the edits that no later group changes: a call's id is that of its results, and of what stands before."""


def send_slots(plan: Plan) -> list[Slot]:
    """Return the slots to send: the projection of the plan's branch with its repairs applied."""
    return patched(project(plan.branch), plan.repair)


def repair_projection(branch: Branch, dialect: Dialect) -> tuple[tuple[Edit, ...], Settled | None]:
    """Return the repairs of the projection, and how much of it is settled for the next time."""
    repair, settled = _repaired(branch, dialect)
    if dialect.api == "anthropic" and not UNTHOUGHT.isdisjoint([edit.rule for edit in repair]):
        slots = project(branch)
        repair = tuple([edit for edit in repair if not (edit.rule in UNTHOUGHT and _is_done(edit, slots, dialect))])
    return repair, settled


def _is_done(edit: Edit, slots: Sequence[Slot], dialect: Dialect) -> bool:
    """Return whether ``edit`` takes thinking, and that alone, out of bytes that have none: their client left it out."""
    slot, put = slots[edit.span.start], edit.put[0]
    if slot.api != dialect.api or slot.raw is None or may_think(slot.raw):
        return False
    told = tuple([part for part in slot.message.parts if not isinstance(part, Thinking)])
    return put == Message(slot.message.role, told)


def _repaired(branch: Branch, dialect: Dialect) -> tuple[tuple[Edit, ...], Settled | None]:
    """Return all repairs, also of what is settled."""
    settled = branch.settled
    if settled is None or settled.dialect != dialect or _may_overflow(branch, dialect):
        settled = None
    if settled is not None:
        slots = _shown_from(branch, settled.slot)
        messages = _read(slots, dialect)
        stands = not orphans(messages) and not _calls(messages, settled.orphans)
        if stands and _are_apart(_used(branch, settled, messages), messages):
            return _settle(branch, settled, slots, messages, 0)
    slots = project(branch)
    return _settle(branch, Settled(dialect, branch.keep, 0), slots, _read(slots, dialect), leading(branch))


def _shown_from(branch: Branch, start: int) -> list[Slot]:
    """Return what the projection shows for the slots from ``start`` on."""
    if not branch.edits:
        return branch.slots.slice(start)
    return [one for index in shown_slots(branch, start) for one in shown(branch, index)]


def _read(slots: Sequence[Slot], dialect: Dialect) -> list[Message]:
    """Return the messages of ``slots`` as they will be written: of those of another API, what this one can say."""
    api = dialect.api
    return [slot.message if slot.api == api or not slot.api else _told(slot.message, api) for slot in slots]


def _told(message: Message, api: str) -> Message:
    """Return a message of another API; an answer without a part, which no API takes, when nothing of it is left."""
    told = native(message, api)
    return told if told.parts else Message("assistant")


def _may_overflow(branch: Branch, dialect: Dialect) -> bool:
    """Whether there may be more media than the API takes: base64 makes four bytes of three."""
    if branch.media > dialect.max_images or branch.media_bytes * 2 > dialect.max_bytes:
        return True
    return branch.media > dialect.images_with_large and _shows_large(branch, dialect)


def _shows_large(branch: Branch, dialect: Dialect) -> bool:
    """Return whether an image that is shown has more pixels on a side than many may have."""
    shown = [*branch.messages.slice(0, branch.pinned)]
    shown += [message for index in branch.pictures for message in messages_at(branch, index)]
    return any(one.kind == "image" and is_over(one, dialect.large_pixels) for one in media_of(*shown))


def _calls(messages: Sequence[Message], ids: frozenset[str]) -> bool:
    return bool(ids) and any(call.id in ids for message in messages for call in message.calls)


def _used(branch: Branch, settled: Settled, messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of calls in ``messages`` that a call in the settled prefix has too."""
    ids = {call.id for message in messages for call in calls_of(message)}
    return frozenset([id_ for id_ in ids if branch.callers.get(id_, settled.slot) < settled.slot])


def _are_apart(ids: frozenset[str], messages: Sequence[Message]) -> bool:
    """Return whether the results of calls of ``ids``, which were used before, answer those in ``messages``.

    So it is where each stands behind the newest answer that calls it.
    """
    waiting: Counter[str] = Counter()
    for message in messages if ids else ():
        called = Counter([call.id for call in calls_of(message)])
        waiting |= called
        for result in message.results:
            waiting[result.call_id] -= 1
            if result.call_id in ids and waiting[result.call_id] < 0:
                return False
    return True


def _settle(
    branch: Branch, settled: Settled, slots: Sequence[Slot], messages: Sequence[Message], lead: int
) -> tuple[tuple[Edit, ...], Settled | None]:
    """Return all repairs, and the settled prefix grown up to the last place where it may end.

    ``messages`` are the ``slots`` as they will be written; ``lead`` counts those at the front that are none of the kept
    tail.
    """
    summary = lead - 1 if lead > branch.pinned else -1
    loose, cut = frozenset(_loose_thinking(branch, settled, lead)), frozenset(_broken(branch, settled, lead))
    own = bool(slots) and slots[0].raw is not None and slots[0].api == settled.dialect.api
    apart = own and settled.dialect.api in APART
    fresh = repairs(
        messages, settled.dialect, settled.position, loose, cut, lead=not apart, summary=summary, before=settled.ids
    )
    regular = len(messages) - lead == len(branch.slots) - settled.slot
    end = _last_break(messages, settled.position, fresh) if regular else 0
    if end <= lead:
        return settled.repairs + fresh, settled if settled.position else None
    edge = settled.position + end
    done = tuple(edit for edit in fresh if edit.span.start < edge)
    stray = settled.orphans | orphans(messages[:end])
    ids = settled.ids | _sent_ids(_repaired_part(messages[:end], settled.position, done), settled.dialect)
    now = Settled(settled.dialect, settled.slot + end - lead, edge, settled.repairs + done, stray, ids)
    return settled.repairs + fresh, now


def _repaired_part(messages: Sequence[Message], first: int, edits: Sequence[Edit]) -> Iterator[Message]:
    """Yield ``messages``, the first of which stands at ``first``, as ``edits`` make them."""
    cursor = 0
    for edit in edits:
        yield from messages[cursor : edit.span.start - first]
        yield from [put for put in edit.put if isinstance(put, Message)]
        cursor = edit.span.stop - first
    yield from messages[cursor:]


def _sent_ids(messages: Iterable[Message], dialect: Dialect) -> frozenset[str]:
    """Return the ids of calls in ``messages`` that no later call may have."""
    if not dialect.unique_ids:
        return frozenset()
    every = (id_ for one in messages for id_ in (*[call.id for call in calls_of(one)], *server_ids(one)))
    return frozenset([id_ for id_ in every if is_sent(id_, dialect)])


def _last_break(messages: Sequence[Message], position: int, edits: Sequence[Edit]) -> int:
    """Return the last place where nothing behind it depends on what stands before.

    That is where the agent answers a finished group, and no edit reaches over it; 0 is nowhere. Stand-ins for
    signatures go when the turn is over, so none of them is settled.
    """
    signed = min((edit.span.start for edit in edits if SIGNED in rules_of(edit)), default=position + len(messages))
    spans = [edit.span for edit in edits if not _GROUPED.issuperset(rules_of(edit))]
    awaited: Counter[str] = Counter()
    for cut in range(len(messages) - 1, 0, -1):
        if messages[cut].role != "assistant":
            awaited.update([result.call_id for result in messages[cut].results])
            continue
        if awaited:
            awaited -= Counter([call.id for call in messages[cut].calls])
        edge = position + cut
        starts = not awaited and messages[cut - 1].role != "assistant"
        if starts and edge <= signed and not any(span.start <= edge <= span.stop for span in spans):
            return cut
    return 0


def _broken(branch: Branch, settled: Settled, lead: int) -> Iterator[int]:
    """Yield the positions of answers that failed or were interrupted."""
    if any(index >= settled.slot for index in branch.broken):
        yield from (position for position, index in _placed(branch, settled, lead) if index in branch.broken)


def _placed(branch: Branch, settled: Settled, lead: int) -> Iterator[tuple[int, int]]:
    """Yield where what is not settled stands in the projection, and the slot that it stands for."""
    position = settled.position + lead
    for index in shown_slots(branch, settled.slot):
        for _ in messages_at(branch, index) if index in branch.edits else (None,):
            yield position, index
            position += 1


def _loose_thinking(branch: Branch, settled: Settled, lead: int) -> Iterator[int]:
    """Yield the positions whose thinking was signed over another prefix than the one it has now.

    Nothing on models that do not bind it. What stood before an answer when it came is in ``born``, what stands there
    now in ``marks``; a frame that gave way to another unbinds as well, and so does a result that came late. What was
    said before there was any frame is taken to be signed over the first one: a conversation that began elsewhere goes
    out as it came.
    """
    said = branch.messages.slice(settled.slot) if settled.dialect.binds_thinking else []
    thoughts = [at for at, message in enumerate(said, settled.slot) if Thinking in map(type, message.parts)]
    early, known = _before_their_results(said, settled.slot, thoughts), frozenset(thoughts)
    for position, index in _placed(branch, settled, lead) if thoughts else ():
        if index in known:
            before = branch.marks[index - 1] if index > branch.keep else base_mark(branch)
            if index < branch.framed or index in early or branch.born[index] != before:
                yield position


def _before_their_results(said: Sequence[Message], first: int, thoughts: Sequence[int]) -> set[int]:
    """Return those of ``thoughts`` that stand between a call and its first result, which is shown before them.

    When they came a stand-in was shown there; answers that follow each other are one, and wait together. ``said`` are
    the messages from slot ``first`` on.
    """
    asked: dict[str, int] = {}
    others: list[int] = []
    early: set[int] = set()
    for index, message in enumerate(said if thoughts else (), first):
        if message.role == "assistant":
            asked |= dict.fromkeys([call.id for call in message.calls], index)
            continue
        others.append(index)
        for result in message.results:
            start = asked.pop(result.call_id, None)
            if start is not None:
                behind = others[bisect_right(others, start)]
                early.update(thoughts[bisect_right(thoughts, behind) : bisect_left(thoughts, index)])
    return early
