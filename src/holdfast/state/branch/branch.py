"""The branch: a fold over the entries from the root of the log to a leaf.

``extend`` is the only constructor. Extending one entry at a time, building at once and planning without memory all
give the same branch; that law is tested. What a request needs of the past is carried along, so that planning costs
what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, groupby
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.media import changes_media, recounted, with_media
from holdfast.state.branch.tool_calls import called, still_open
from holdfast.state.branch.view import (
    base_mark,
    basis_at,
    chained,
    held_for,
    mark_at,
    native_size,
    shown,
    slot_after,
    summary_size,
)
from holdfast.state.calibration.calibration import Anchor, Gauge, Learned, Used, reframed
from holdfast.state.calibration.model_stats import Known, as_noted, asking, forgotten, formed
from holdfast.state.calibration.usage import from_overflow, from_usage, is_absurd, is_newest
from holdfast.state.codec.dump import dumped, loaded
from holdfast.state.edit_map import Edits
from holdfast.state.edits import Edit, Settled
from holdfast.state.entries import (
    DELIVERED,
    FALLBACK,
    FORGOTTEN,
    FORM,
    HISTORY,
    KNOWN,
    OVERFLOW,
    POLICY,
    QUEUED,
    UNANSWERED,
    Answer,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Failure,
    Frame,
    Note,
    Request,
    Revoke,
    Said,
    Usage,
)
from holdfast.state.sequence import Seq

TRUNCATE = "truncate"
"""Rule of the edits that cut results under pressure, which happens once between two answers."""


class Branch(Struct, frozen=True):
    """What is known of a conversation at one leaf. Immutable; sizes are estimator tokens unless said otherwise."""

    slots: Seq[Slot] = field(default_factory=Seq)
    """Every message from the root, oldest first."""
    messages: Seq[Message] = field(default_factory=Seq)
    """The messages of the slots, to be compared with a caller's list."""
    sums: Seq[int] = field(default_factory=Seq)
    """``sums[i]`` is the size of slots 0 to i as they were said."""
    marks: Seq[bytes] = field(default_factory=Seq)
    """``marks[i]`` is the digest of the projection up to and with slot i; nothing for one that gave way."""
    born: Seq[bytes] = field(default_factory=Seq)
    """``born[i]`` is the digest of the projection before slot i at the time it was appended; of an answer, of what its
    request showed, or nothing where that stands no more."""
    pinned: int = 0
    """System messages at the very start; they are always sent."""
    keep: int = 0
    """First slot that is shown; the ones before it gave way to ``compaction``."""
    compaction: Compaction | None = None
    edits: Edits = field(default_factory=Edits)
    """Recorded edits in force, by the slot they start at."""
    held: int = 0
    """Size of the projection, as the model that was asked last is shown it."""
    native: int = 0
    """Size of what stands for the head in it, where a provider compacted: its own items, or their readable twin."""
    callers: dict[str, int] = field(default_factory=dict)
    """The slot that first used a call id; shared with the branches grown from here, so a larger index means never."""
    pictures: tuple[int, ...] = ()
    """The kept slots that show images or documents."""
    media: int = 0
    """Images and documents that are shown."""
    media_bytes: int = 0
    open: tuple[str, ...] = ()
    """Ids of calls of the newest assistant message that have no result yet."""
    broken: tuple[int, ...] = ()
    """Slots of answers that failed or were interrupted: calls of theirs without a result never ran."""
    frame: Frame = Frame()
    framed: int = 0
    """How many slots there were when another frame last took the place of one; 0 where none did."""
    seen: int = 0
    """How many slots the newest request covered: what lies before was seen by the model as it is shown."""
    standing: int = 0
    """First of them that is shown otherwise since; ``seen`` where none is."""
    found: tuple[int, int] = (0, 0)
    """``seen`` and ``standing`` as the newest request found them."""
    asked: int = 0
    """``held`` at the newest request."""
    basis: str = ""
    model: str = ""
    api: str = ""
    """The API that the newest request went to, as far as the log says so."""
    window: int = 0
    """Window of the newest request as it was configured; 0 = not known."""
    measured: Anchor | None = None
    """The newest request whose size was told, whatever it shows now; ``anchor`` where that still stands."""
    answered: Used | None = None
    """What was in use at the newest good answer; ``used`` where no compaction came later."""
    gauge: Gauge = Gauge()
    learned: Learned = Learned()
    """What overflows told of the model that was asked last."""
    aside: tuple[Known, ...] = ()
    """What was told of the models that were asked before it, in the order in which they were left."""
    quiet: int = 0
    """Requests since the prefix last broke; a retry is the same request."""
    compactions: int = 0
    """Compactions since the last answer."""
    failures: int = 0
    """Failed or useless compactions since the last good one."""
    unwritten: int = 0
    """The same since the last one that somebody wrote: an extract in its place ends no row."""
    failed_at: int | None = None
    """When the newest of them failed, in ms since 1970, where the log says so."""
    truncations: int = 0
    """Decisions to cut results under pressure since the last answer."""
    law: tuple[tuple[str, Decision | Compaction], ...] = ()
    """Decisions and compactions in force with the ids of their entries, oldest first."""
    spared: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Parts that an undo brought back, by their slot; nothing is all of it. Only what must fit may take them again."""
    counted: int = 0
    """First slot that a limit of turns counts: an undo of what it hid brings back those before."""
    waiting: tuple[tuple[str, bytes], ...] = ()
    """The ids of the notes that hold messages which wait to be said, and what they hold; oldest first."""
    policy: str = ""
    """Who decides, as far as a note says so."""
    settled: Settled | None = None
    """What hygiene found so far; a memory of the planner's, it changes no result."""

    @property
    def anchor(self) -> Anchor | None:
        """The request whose size was told, if what it showed still stands; so it does once a decision is undone."""
        told = self.measured
        if told is None or not told.mark or told.native != self.native:
            return None
        return told if told.mark == mark_at(self, told.slots) else None

    @property
    def used(self) -> Used | None:
        """What was in use at the newest good answer, under the summary that is shown now."""
        return self.answered if self.answered is not None and self.answered.mark == base_mark(self) else None

    @classmethod
    def build(cls, entries: Iterable[Entry]) -> Branch:
        """Return the branch of ``entries``, given in order from the root."""
        return extended(cls(), entries)

    def reported(self, input_tokens: int, output_tokens: int = 0) -> Branch:
        """Return the branch knowing what the request it was planned for really cost, cached tokens included.

        Raises ``TypeError`` for what is no number of tokens.
        """
        for name, given in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if not isinstance(given, int):
                raise TypeError(f"{name} is of type {type(given).__name__}; give the number that the provider reported")
        usage = Usage(input_tokens, output_tokens)
        return extend(self, Entry("", None, Answer(self.basis, usage)))

    def dump(self) -> bytes:
        """Return the branch as bytes for a database of your own; wire bytes are kept byte for byte."""
        return dumped(self)

    @classmethod
    def load(cls, given: bytes) -> Branch:
        """Return the branch that ``dump`` wrote; raises ``FormatError`` for any other bytes."""
        return recounted(cls(**loaded(given)))


def extend(branch: Branch, entry: Entry) -> Branch:
    """Return the branch with ``entry`` at its leaf. Kinds that change no request return the same branch."""
    step = _STEPS.get(type(entry.body))
    return branch if step is None else step(branch, entry, entry.body)


def extended(branch: Branch, entries: Iterable[Entry]) -> Branch:
    """Return the branch with all of ``entries`` behind its leaf; messages that stand together are taken at once."""
    every = [*entries]
    said = [entry.body.slot for entry in every if isinstance(entry.body, Said)]
    if len(said) == len(every) > 0:
        return _all_said(branch, said)
    for kind, run in groupby(every, lambda entry: type(entry.body)):
        some = [*run]
        branch = extended(branch, some) if kind is Said else reduce(extend, some, branch)
    return branch


def as_found(branch: Branch, request: Request) -> Branch:
    """Return the branch as its newest request found it, where ``request`` is that one again: a retry."""
    if (request.basis, request.slots) != (branch.basis, branch.seen):
        return branch
    seen, standing = branch.found
    return replace(branch, seen=seen, standing=standing)


def is_spared(branch: Branch, slot: int, part: int | None) -> bool:
    """Return whether an undo brought back this part, or all of its slot."""
    parts = branch.spared.get(slot, ())
    return part in parts or None in parts


# -- the steps of the fold ---------------------------------------------------------------------------------------------


def _said(branch: Branch, _entry: Entry, body: Said | BranchSummary) -> Branch:
    return _all_said(branch, [body.slot])


def _all_said(branch: Branch, new: Sequence[Slot]) -> Branch:
    """Return the branch with the messages of ``new`` said in turn."""
    count, messages = len(branch.slots), [slot.message for slot in new]
    born, marks = _marked(branch, new)
    slots = branch.slots.add(*new)
    callers = called(branch.callers, branch.slots, slots, new)
    sizes = list(accumulate([slot.size for slot in new], initial=branch.sums[-1] if count else 0))
    opening = _opening(messages) if branch.pinned == count and branch.compaction is None else 0
    answer = next((at for at in reversed(range(len(new))) if messages[at].role == "assistant"), None)
    branch = replace(
        branch,
        slots=slots,
        messages=branch.messages.add(*messages),
        callers=callers,
        sums=branch.sums.add(*sizes[1:]),
        marks=branch.marks.add(*marks),
        born=branch.born.add(*born),
        pinned=branch.pinned + opening,
        keep=count + opening if opening else branch.keep,
        held=branch.held + sizes[-1] - sizes[0],
        open=reduce(still_open, messages[answer:], branch.open),  # an answer's calls are all that wait behind it
        compactions=branch.compactions if answer is None else 0,
        truncations=branch.truncations if answer is None else 0,
    )
    return with_media(branch, enumerate(messages, count))


def _marked(branch: Branch, new: Sequence[Slot]) -> tuple[list[bytes], list[bytes]]:
    """Return the digests of the projection before each of ``new``, and with it."""
    count, base = len(branch.slots), base_mark(branch)
    hidden = [b""] * min(len(new), max(0, branch.keep - count))
    before = branch.marks[-1] if count > branch.keep else base
    marks = [*accumulate([slot.digest for slot in new[len(hidden) :]], chained, initial=before)]
    return [base] * len(hidden) + marks[:-1], hidden + marks[1:]


def _opening(messages: Sequence[Message]) -> int:
    """Return how many system messages ``messages`` open with."""
    return next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))


def _frame(branch: Branch, _entry: Entry, body: Frame) -> Branch:
    if body == branch.frame:
        return branch
    more, same = body.tokens - branch.frame.tokens, body.exact == branch.frame.exact
    measured = reframed(branch.measured, more) if same else None
    aside = [replace(one, measured=reframed(one.measured, more) if same else None) for one in branch.aside]
    framed = len(branch.slots) if branch.seen or branch.frame != Frame() else branch.framed  # the first changes nothing
    return replace(branch, frame=body, framed=framed, measured=measured, aside=tuple(aside), quiet=0, settled=None)


def _decision(branch: Branch, entry: Entry, body: Decision) -> Branch:
    return replace(
        _decided(branch, body.edits),
        law=(*branch.law, (entry.id, body)),
        truncations=branch.truncations + any(edit.rule == TRUNCATE for edit in body.edits),
    )


def _decided(branch: Branch, new: tuple[Edit, ...]) -> Branch:
    """Put ``new`` edits in force."""
    if not new:
        return branch
    first = min(edit.span.start for edit in new)
    saved = sum(edit.saves for edit in new if edit.span.start >= branch.keep)
    branch = replace(
        branch,
        edits=branch.edits.add(new),
        held=branch.held - saved,
        quiet=branch.quiet if first >= branch.seen else 0,
        standing=min(branch.standing, _first_changed(branch, new)),
        settled=branch.settled if branch.settled is not None and first >= branch.settled.slot else None,
    )
    branch = recounted(branch) if changes_media(branch, new) else branch
    return _remark(branch, max(first, branch.keep))


def _compaction(branch: Branch, entry: Entry, body: Compaction) -> Branch:
    return replace(
        _compacted(branch, body),
        law=(*branch.law, (entry.id, body)),
        compactions=branch.compactions + (body.summary is not None and body.trigger != FALLBACK),
        failures=branch.failures if body.summary is None else 0,
        unwritten=0 if body.by else branch.unwritten,
        quiet=0,
    )


def _compacted(branch: Branch, body: Compaction) -> Branch:
    """Return the branch with what lies before the kept slots given way: it costs what is kept."""
    every, edits = len(branch.slots), branch.edits.add(body.edits)
    head = sum(slot.size for slot in branch.slots.slice(0, branch.pinned))
    tail = sum(slot.size for slot in branch.slots.slice(body.keep))
    saved = sum(edit.saves for index in range(body.keep, every) for edit in edits.get(index, ()))
    hidden = [b""] * (min(body.keep, every) - branch.pinned)
    branch = replace(
        branch,
        keep=body.keep,
        compaction=body,
        native=native_size(body, branch.model, branch.api),
        edits=edits,
        held=head + summary_size(body, branch.model, branch.api) + tail - saved,
        marks=branch.marks.changed(branch.pinned, hidden),
        standing=min(branch.standing, body.keep),
        settled=None,
    )
    return _remark(recounted(branch), body.keep)


def _revoke(branch: Branch, _entry: Entry, body: Revoke) -> Branch:
    law = tuple([(id_, what) for id_, what in branch.law if id_ != body.id])
    if len(law) == len(branch.law):
        return branch
    after = replace(_without(branch, law), standing=branch.standing)
    for gone in [what for id_, what in branch.law if id_ == body.id]:
        after = _brought_back(after, branch, gone)
    return after


def _brought_back(branch: Branch, before: Branch, gone: Decision | Compaction) -> Branch:
    """Return ``branch``, that of ``before`` without ``gone``, knowing what that brought back."""
    hid = isinstance(gone, Compaction)
    limited = isinstance(gone, Compaction) and gone.trigger == HISTORY
    first = min(branch.keep, before.keep) if hid else _first_changed(branch, gone.edits)
    spared = dict(branch.spared)
    for edit in gone.edits:
        for slot in range(edit.span.start, edit.span.stop):
            spared[slot] = (*spared.get(slot, ()), edit.span.part)
    return replace(
        branch,
        standing=min(branch.standing, first),
        spared=spared,
        counted=len(branch.slots) if limited else branch.counted,
    )


def _without(branch: Branch, law: tuple[tuple[str, Decision | Compaction], ...]) -> Branch:
    """Return the branch with ``law`` alone in force; of its compactions the newest says what is shown."""
    newest = max([at for at, (_, what) in enumerate(law) if isinstance(what, Compaction)], default=-1)
    before = [edit for _, what in law[: max(0, newest)] for edit in what.edits]
    behind = [edit for _, what in law[newest + 1 :] for edit in what.edits]
    branch = replace(branch, law=law, edits=Edits(before), quiet=0)
    made = law[newest][1] if newest >= 0 else None
    if isinstance(made, Compaction):
        return _decided(_compacted(branch, made), tuple(behind))
    held = branch.sums[-1] if len(branch.slots) else 0
    branch = replace(branch, keep=branch.pinned, compaction=None, native=0, held=held, settled=None)
    return _decided(_remark(recounted(branch), branch.pinned), tuple(behind))


def _first_changed(branch: Branch, edits: Iterable[Edit]) -> int:
    """Return the first slot that is shown otherwise by ``edits``, or the end."""
    changed = (
        max(edit.span.start, branch.keep) for edit in edits if max(edit.span.stop, edit.span.start + 1) > branch.keep
    )
    return min(changed, default=len(branch.slots))


def _request(branch: Branch, _entry: Entry, body: Request) -> Branch:
    retried = as_found(branch, body) is not branch
    covered = min(body.slots, len(branch.slots))  # in a log that lost messages a request may have covered more
    held = held_for(branch, body.model, body.api)
    return replace(
        asking(branch, body.model, body.window),
        api=body.api,
        held=held,
        native=native_size(branch.compaction, body.model, body.api),
        seen=covered,
        standing=covered,
        found=branch.found if retried or branch.learned.overflows else (branch.seen, branch.standing),
        asked=held,
        basis=body.basis,
        quiet=branch.quiet + (not retried),
    )


BROKEN = frozenset({"error", "aborted"})
"""Values of ``Answer.stop`` for answers that failed or were interrupted (as ``formats/base.py`` reads them)."""


def _answer(branch: Branch, _entry: Entry, body: Answer) -> Branch:
    branch = replace(_answering(branch), compactions=0, truncations=0)
    last = len(branch.slots) - 1
    if body.stop in BROKEN and last >= branch.keep and branch.slots[last].message.role == "assistant":
        branch = replace(branch, broken=(*branch.broken, last), open=(), settled=None)  # its calls never ran
    if body.stop not in BROKEN and is_newest(branch, body) and not is_absurd(branch, body.usage.input):
        slots = max(branch.seen + 1, len(branch.slots))  # the answer may be said before this entry or after it
        branch = replace(branch, answered=Used(slots, body.usage.total, base_mark(branch)))
    return from_usage(branch, body)


def _answering(branch: Branch) -> Branch:
    """Return the branch with its newest message, if that answers the newest request, born behind what that showed.

    What was said or decided while the answer was on its way lies between them.
    """
    last = len(branch.slots) - 1
    if not branch.basis or last < max(branch.seen, branch.keep) or branch.messages[last].role != "assistant":
        return branch
    before = mark_at(branch, branch.seen) if branch.basis == basis_at(branch, branch.seen) else b""
    same = branch.born[last] == before
    return branch if same else replace(branch, born=branch.born.changed(last, [before]))


def _failure(branch: Branch, entry: Entry, body: Failure) -> Branch:
    if body.kind == OVERFLOW:
        return from_overflow(branch, body)
    if body.kind == UNANSWERED:
        return branch
    return replace(branch, failures=branch.failures + 1, unwritten=branch.unwritten + 1, failed_at=entry.at)


def _note(branch: Branch, entry: Entry, body: Note) -> Branch:
    if body.reason == FORGOTTEN:
        return forgotten(branch)
    if body.reason == KNOWN:
        return as_noted(branch, body)
    if body.reason == FORM:
        return formed(branch, body)
    if body.reason == QUEUED:
        return replace(branch, waiting=(*branch.waiting, (entry.id, body.raw)))
    if body.reason == DELIVERED:
        said = body.data.get("notes")
        waiting = [one for one in branch.waiting if not isinstance(said, Sequence) or one[0] not in said]
        return replace(branch, waiting=tuple(waiting))
    name = body.data.get("name") if body.reason == POLICY else None
    return replace(branch, policy=name) if isinstance(name, str) else branch


_STEPS: dict[type, Callable[[Branch, Entry, Any], Branch]] = {
    Said: _said,
    BranchSummary: _said,
    Frame: _frame,
    Decision: _decision,
    Compaction: _compaction,
    Revoke: _revoke,
    Request: _request,
    Answer: _answer,
    Failure: _failure,
    Note: _note,
}


def _remark(branch: Branch, first: int) -> Branch:
    """Return the branch with the digests of its projection made anew from slot ``first`` on."""
    marks: list[bytes] = []
    before = branch.marks[first - 1] if first > branch.keep else base_mark(branch)
    index, stop = first, len(branch.slots)
    while index < stop:
        for slot in shown(branch, index):
            before = chained(before, slot.digest)
        after = slot_after(branch, index)
        marks += [before] * (min(after, stop) - index)
        index = after
    return replace(branch, marks=branch.marks.changed(first, marks))
