"""The journal: one branch of one stored session, from what is said to what is sent.

Synchronous. What a verb returns for is in the log; where it raises, log and branch are as they were. Each verb costs
what is new: the branch is folded on, not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.log.branch_log import Strand
from holdfast.engine.log.conversation_diff import Following, Repeated
from holdfast.engine.log.fork import carried, lessons, told_there
from holdfast.engine.log.new_entries import begun, cost, decided, is_pressed, meant, measured, sound, told
from holdfast.engine.log.queue import delivered, is_of_user, is_queued, queued, undelivered, waiting_on
from holdfast.errors import StoreError, UnknownId, check_types
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot, characters_at_most
from holdfast.messages.text.cutting import one_line
from holdfast.messages.user_text import first_words
from holdfast.normalize.projection import send_slots
from holdfast.planning.breaker import failed_often, is_closed
from holdfast.planning.budget import in_force
from holdfast.planning.pipeline import Policy, advance
from holdfast.planning.stages.append_limit import cap
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.fork import held_as, restated
from holdfast.state.branch.view import prefix_basis
from holdfast.state.edits import Blob
from holdfast.state.entries import (
    FORGOTTEN,
    FORM,
    OVERFLOW,
    UNANSWERED,
    Answer,
    Body,
    BranchSummary,
    Compaction,
    Entry,
    Failure,
    Note,
    Request,
    Revoke,
    Said,
    Usage,
)
from holdfast.state.plan import Plan, asked_for
from holdfast.state.target import Target, World
from holdfast.store.base import Decode, SessionStore
from holdfast.store.blobs.blob_names import CAPPED
from holdfast.store.reading import read_repaired
from holdfast.store.tree.active import Gapped
from holdfast.store.tree.tree import new_ids, now_ms

TITLE = 80
"""Characters of a session's title, if nobody gave it one."""


class Prepared(Struct, frozen=True):
    """A request that may be sent now: what it shows and why, and the id of its entry in the log."""

    plan: Plan
    slots: tuple[Slot, ...]
    request: str
    target: Target


class Journal(Strand):
    """One branch of one stored session, with the verbs that go on with it. What a fork appends is always a branch."""

    def __init__(
        self,
        store: SessionStore,
        key: str,
        policy: Policy,
        branch: Branch,
        leaf: str | None,
        clock: Callable[[], int] = now_ms,
        *,
        ids: Callable[[int], list[str]] = new_ids,
        moves_leaf: bool = False,
    ) -> None:
        super().__init__(store, key, branch, leaf, clock, ids, moves_leaf=moves_leaf)
        self.policy = policy
        self._last_sent = store.session(key).updated or clock()
        """When the last request went out or was answered, as far as that is known."""
        self._ready: Prepared | None = None
        self._following = Following()
        self._described = ""
        """The model that the list of sessions shows, as far as this journal said so."""
        self._waiting: list[tuple[str, Message]] | None = None
        """What was said while a request was on its way, with the ids of its notes; nothing = not looked for yet."""

    @classmethod
    def open(
        cls,
        store: SessionStore,
        key: str,
        policy: Policy = Policy(),
        *,
        leaf: str | None = None,
        clock: Callable[[], int] = now_ms,
        ids: Callable[[int], list[str]] = new_ids,
    ) -> Journal:
        """Return the journal at ``leaf`` of session ``key``; without one, at the session's leaf, created if need be.

        The policy is the one for that key: a channel's limit of turns counts. A damaged session is repaired first where
        that loses nothing (``repairs`` says what was done), else it is a ``StoreCorrupt``.
        """
        policy = policy.for_session(key)
        if leaf is not None:
            place: str | None = store.entry(key, leaf).id
        else:
            with store.writing(key):
                place = begun(store, key, policy, clock, ids)
        repairs: list[str] = []
        branch = Branch()
        if place is not None:
            branch = read_repaired(store, key, lambda: store.branch(key, place), repairs.extend)
        journal = cls(store, key, policy, branch, place, clock, ids=ids, moves_leaf=leaf is None)
        journal._waiting = waiting_on(branch, key)
        journal.repairs = repairs
        return journal

    # -- what is said --------------------------------------------------------------------------------------------------

    def append(self, *said: Message | Slot) -> list[str]:
        """Append messages in one transaction and return the ids of their entries.

        A text that is longer than an entry may hold is stored apart; where that fails, the message stays whole.
        """
        return self._appended(said)

    def record(self, answer: Message | Slot, usage: Usage = Usage(), stop: str = "", *, as_planned: bool = True) -> str:
        """Append the answer to the last prepared request, with what it cost; return the id of the message.

        One without a word is no message: what it cost is written alone. What was said while the answer was on its way
        follows it. Where another request went out than the one that was planned, what it cost tells nothing of the
        size of that one.
        """
        slot = measured(answer)
        with self.leased():
            said = self._entries_of(slot) if slot.message.parts else []
            entries = self._write([*said, cost(self.branch, usage, stop, as_planned=as_planned)])
            self._deliver()
        return next((entry.id for entry in reversed(entries) if isinstance(entry.body, Said)), entries[0].id)

    def fail(self, reason: str, kind: str = UNANSWERED) -> str:
        """Append that an attempt failed, which changes no later request; return the entry's id.

        ``kind`` is ``UNANSWERED`` for the last prepared request, else what became of a compaction.
        """
        ready = self._ready
        with self.leased():
            entries = self._write([Failure(kind, reason)])
        self._ready = ready
        return entries[0].id

    def remark(self, *notes: Note) -> None:
        """Append ``notes`` that change no request."""
        if notes:
            with self.leased():
                self._write(notes)

    def learn(
        self, reason: str, limit: int = 0, requested: int = 0, most_bytes: int = 0, *, as_planned: bool = True
    ) -> str:
        """Append that the last prepared request was too large, by the provider's numbers; return the entry's id.

        Every later request knows it; the next one is planned anew. Of a request that was another than the planned one
        the limit alone counts. ``most_bytes`` is what a body may have, where that was what was wrong.
        """
        size = requested if as_planned else 0
        lesson = Failure(OVERFLOW, reason, limit, size, elsewhere=not as_planned, bytes=most_bytes)
        with self.leased():
            return self._write([lesson])[0].id

    def form(self, *, mends: bool = False, judges: bool = False) -> None:
        """Append which form the server of the model asked last wants (``Learned``), unless the log says so already.

        A request that is about to be sent again stays ready.
        """
        ready, known = self._ready, self.branch.learned
        if (known.mends, known.judges) != (mends, judges):
            with self.leased():
                self._write([Note(FORM, data={"mends": mends, "judges": judges})])
            self._ready = ready

    def describe(self, model: str) -> None:
        """Let the list of sessions show which model this one asks, and the first words of its user as a title."""
        if self._described == model:
            return
        info = self.store.session(self.key)
        asked = () if isinstance(self.branch.slots, Gapped) else self.branch.messages
        title = None if info.title else one_line(first_words(asked), TITLE) or None
        self.store.describe(self.key, title=title, model=model)
        self._described = model

    def idle(self) -> int:
        """Return the seconds since the last request went out or was answered."""
        return max(0, (self._clock() - self._last_sent) // 1_000)

    def is_cooled(self) -> bool:
        """Return whether compaction failed too often, and so long ago that it may be tried once more."""
        branch, settings = self.branch, self.policy.settings
        return failed_often(branch.failures, settings) and is_closed(
            branch.failures, branch.failed_at, self._clock(), settings
        )

    def stands(self) -> bool:
        """Return whether the store still has what this goes on behind: somebody may have removed the session."""
        try:
            return self.leaf is None or bool(self.store.entry(self.key, self.leaf).id)
        except UnknownId:
            return False

    def slots_said(self, start: int, stop: int) -> list[Slot]:
        """Return the slots from ``start`` to ``stop`` as they were said, read again where the branch has them not."""
        try:
            return self.branch.slots.slice(start, stop)
        except LookupError:
            self._reread()
            return self.branch.slots.slice(start, stop)

    # -- what is said while a request is on its way --------------------------------------------------------------------

    def wait(self, *said: Message | Slot) -> list[str]:
        """Store messages while an answer is on its way, and return the ids of their entries.

        A user's words belong behind it: they are durable now and said when it is there. What else there is, as the
        results of calls, is said now.
        """
        with self.leased():
            bodies = [body for one in said for body in self._entries_of(one, waits=True)]
            entries = [entry for entry in self._write(bodies) if isinstance(entry.body, Said) or is_queued(entry)]
        if self._waiting is not None:
            ids = [entry.id for entry in entries if is_queued(entry)]
            self._waiting += zip(ids, filter(is_of_user, said), strict=True)
        return [entry.id for entry in entries]

    @property
    def may_wait(self) -> bool:
        """Whether something may wait for an answer that was not said yet."""
        return self._waiting != []

    def deliver(self) -> list[str]:
        """Say what waited for an answer and was not said yet; return the ids of the messages."""
        if not self.may_wait:
            return []
        with self.leased():
            return self._deliver()

    def _deliver(self) -> list[str]:
        self._catch_up()
        if self._waiting is None:
            self._waiting = undelivered(self.store, self.key, self.leaf)
        if not self._waiting:
            return []
        bodies = [body for _, message in self._waiting for body in self._entries_of(message)]
        entries = self._write([*bodies, delivered([id_ for id_, _ in self._waiting])])
        self._waiting = []
        return [entry.id for entry in entries if isinstance(entry.body, Said)]

    # -- what is sent --------------------------------------------------------------------------------------------------

    def prepare(self, target: Target, world: World = World()) -> Prepared:
        """Return the next request; what was decided for it is in the log, and so is that it is about to be sent.

        A retry, with nothing said since, shows the same, also after a restart: only ``world.force`` or a ``rung`` and
        a target that it does not fit decide anew. Where a text cannot be stored away every text stays whole, and a
        notice says so. Nobody is asked for a summary: an extract is made. Raises ``WindowTooSmall`` before anything is
        written.
        """
        alone = replace(world, writes=False)
        while (prepared := self.commit(self.plan(target, alone), target, alone)) is None:
            pass
        return prepared

    def plan(self, target: Target, world: World = World()) -> Plan:
        """Return the plan of the next request; nothing is written. It may ``ask`` for a summary."""
        check_types(TypeError, target=(target, Target), world=(world, World))
        self._catch_up()
        if self._ready is not None and self._ready.target == target and not is_pressed(world):
            return self._ready.plan
        return self._retried(target, world) or self._plan(target, world)

    def commit(self, plan: Plan, target: Target, world: World = World()) -> Prepared | None:
        """Return the request of ``plan``, once what it decides is in the log; nothing where more was said since."""
        if self._ready is not None and plan is self._ready.plan:
            return self._ready
        with self.leased():
            if not self._stands(plan):
                return None
            plan = self._kept(plan, target, world)
            entries = self._write(decided(self.branch, plan, target, self.policy.name))
        self.branch = replace(self.branch, settled=plan.branch.settled)
        plan = replace(plan, branch=self.branch)
        prepared = Prepared(plan, tuple(send_slots(plan)), entries[-1].id, target)
        self._ready = prepared
        return prepared

    def decide(self, plan: Plan, target: Target, world: World = World()) -> Plan | None:
        """Write what ``plan`` decides, with no request behind it (``/compact``).

        Returns the plan that is in the log, another where its texts cannot be stored; nothing where it stood no more.
        """
        with self.leased():
            if not self._stands(plan):
                return None
            kept = self._kept(plan, target, world)
            self._write(decided(self.branch, kept, target, self.policy.name)[:-1])
        return kept

    def compact(self, made: Compaction) -> str:
        """Append a compaction that somebody else made of what was said here; return its id."""
        with self.leased():
            return self._write([made])[0].id

    def _stands(self, plan: Plan) -> bool:
        """Whether ``plan`` was made for the branch as it is: nothing was said, decided or taken back since."""
        if self._catch_up() or len(plan.branch.slots) != len(self.branch.slots):
            return False
        new = bool(plan.record) + (plan.compaction is not None)
        return plan.branch.law[: len(plan.branch.law) - new] == self.branch.law

    def _kept(self, plan: Plan, target: Target, world: World) -> Plan:
        """Return ``plan`` with its texts stored away, or another where they cannot be."""
        refused = self._stored(plan.blobs)
        if refused is None:
            return plan
        other = told(self._plan(target, replace(world, spill=False, writes=False)), refused)
        was_asked_for = plan.compaction is not None and plan.compaction.trigger == "manual"
        return asked_for(other) if was_asked_for else other

    # -- other branches ------------------------------------------------------------------------------------------------

    def undo(self, id: str | None = None) -> str:  # noqa: A002 -- what it is called everywhere
        """Revoke the newest decision or compaction in force, or the one whose id begins with ``id``; return its id.

        What that brings back no rule takes again, except where the request would not fit without: texts and media go
        then, and a compaction comes again where the request is over its trigger. Behind an undone limit of turns only
        the turns said since count.
        """
        return self.revoke(id)[0]

    def revoke(self, *ids: str | None) -> list[str]:
        """Undo each of what ``ids`` begin, or nothing of it where one means none; return their whole ids."""
        with self.leased():
            self._catch_up()
            if isinstance(self.branch.slots, Gapped):
                self._reread()
            law = [id_ for id_, _ in self.branch.law]
            revoked = list(dict.fromkeys(meant(law, id_) for id_ in ids))
            self._write([Revoke(id_) for id_ in revoked])
        return revoked

    def forget(self) -> None:
        """Append that nothing counts any more that overflows told of the window: it is as configured again."""
        with self.leased():
            self._catch_up()
            self._write([Note(FORGOTTEN, data={"limit": self.branch.learned.limit, "behind": self.leaf or ""})])

    def follow(self, said: Sequence[Slot], decode: Decode | None = None) -> list[str]:
        """Go on where ``said``, a whole conversation, does: what is new is appended; return the ids of that.

        The same words in other bytes are no other conversation; those bytes count from now on. Where it parts from the
        log its past was edited: this goes on beside what was said there, with the decisions about what stands, and the
        session's leaf stays. They are measured; ``decode`` made them of their bytes, each alone.
        """
        if isinstance(self.branch.slots, Gapped):
            self._reread()
        said = tuple(said)
        same = self.repeats(said)
        parts = len(same.slots) < len(self.branch.slots)
        if parts:
            self._part(len(same.slots))
        start = 0 if parts else same.standing
        branch = restated(self.branch, same.slots, start)
        if branch is not self.branch:
            self._ready = None
        self.branch = held_as(branch, same.slots, start)
        ids = self._appended(said[same.count :], decode)
        self._said = self.branch.slots
        self._following.went_on(self._said, said, same)
        return ids

    def repeats(self, said: Sequence[Slot]) -> Repeated:
        """Return what ``said``, a whole conversation, repeats of this branch."""
        return self._following.repeated(self.branch.slots, tuple(said), self.policy.settings)

    def _part(self, count: int) -> None:
        """Go back to just before message ``count`` was said."""
        path, before = self._path(), self.branch
        said = [at for at, entry in enumerate(path) if isinstance(entry.body, Said | BranchSummary)]
        stop, ids = said[count], dict[str, str]()
        self.branch, self.leaf = self._read(path[:stop]), path[stop].parent
        self.moves_leaf, self._ready = False, None
        for one in carried(before, path, stop, count):
            (entry,) = self._write([told_there(one.body, prefix_basis(self.branch), ids)])
            ids[one.id] = entry.id
        self._write(lessons(self.branch, before))

    def fork(self, entry: str) -> Journal:
        """Return a journal that goes on behind ``entry``; this one, and the session's leaf, stay where they are."""
        return Journal.open(self.store, self.key, self.policy, leaf=entry, clock=self._clock, ids=self._ids)

    def said_again(self, replacements: Callable[[Sequence[Entry]], Mapping[str, Message]]) -> int:
        """Say the branch again on a copy, with other messages for some entries of its path, and go on there.

        The old branch stays whole. Returns how many say something else; 0 where nothing does, and nothing was copied.
        """
        with self.leased():
            found = replacements(self.store.path(self.key, self.leaf))
            leaf = self.store.branch_with(self.key, found, self.leaf)
            if leaf is None:
                return 0
            self.leaf, self.branch, self._ready = leaf, self.store.branch(self.key, leaf), None
        return len(found)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _appended(self, said: Iterable[Message | Slot], decode: Decode | None = None) -> list[str]:
        with self.leased():
            bodies = [body for one in said for body in self._entries_of(one)]
            return [entry.id for entry in self._write(bodies, decode) if isinstance(entry.body, Said)]

    def _entries_of(self, said: Message | Slot, *, waits: bool = False) -> list[Body]:
        """Return the entries of one message: capped, with a note that names the blobs behind it, or as it is.

        A user's words are a note where an answer ``waits`` to be said before them.
        """
        if waits and is_of_user(said):
            return [queued(sound(said))]
        slot, settings = measured(said), self.policy.settings
        if characters_at_most(slot) <= settings.append_chars:
            return [Said(slot)]
        short, blobs = cap(slot.message, settings)
        if not blobs or self._stored(blobs) is not None:
            return [Said(slot)]
        named = Note(CAPPED, data={"blobs": [blob.hash for blob in blobs]})
        return [named, Said(replace(measure(short), api=slot.api))]

    def _stored(self, blobs: Iterable[Blob]) -> StoreError | None:
        """Store ``blobs``; return why one could not be, if so."""
        try:
            for blob in blobs:
                self.store.blobs.put(blob.text)
        except StoreError as error:
            return error
        return None

    def _retried(self, target: Target, world: World) -> Plan | None:
        """Return the plan of the newest request again, where nothing was said or revoked since and it still fits."""
        branch = self.branch
        asked, now = (branch.seen, branch.model, branch.frame), (len(branch.slots), target.model, target.frame)
        if is_pressed(world) or asked != now or not branch.seen or branch.basis != prefix_basis(branch):
            return None
        plan = advance(branch, target, replace(self.policy, stages=()), world)
        most = in_force(target, branch, self.policy.settings).limits.window
        return plan if plan.after <= most else None

    def _plan(self, target: Target, world: World) -> Plan:
        """Return the plan of the next request; turns that gave way are read again only where it needs them."""
        try:
            return advance(self.branch, target, self.policy, world)
        except LookupError:
            if not isinstance(self.branch.slots, Gapped):
                raise
        self._reread()
        return advance(self.branch, target, self.policy, world)

    def _turned(self, new: Sequence[Entry] = ()) -> None:
        """Make ready anew what was made for another branch; what others did may be that what waited was said."""
        self._ready = None
        if not new:
            self._waiting = None
        if not {Request, Answer}.isdisjoint([type(entry.body) for entry in new]):
            self._last_sent = self._clock()
