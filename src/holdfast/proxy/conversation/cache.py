"""The branches that are being talked on: which of them a request continues, without reading the store again.

What is held here is memory only. Whatever is not here is looked up in the log, which says the same; what the log could
not take is here alone, until it takes something of that session again.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

from msgspec.structs import replace

from holdfast.engine.engine_resources import Means
from holdfast.engine.log.journal import Journal
from holdfast.engine.session import Session
from holdfast.errors import LogConflict, StoreError, UnknownId, UnknownPolicy
from holdfast.messages.sized_message import Slot
from holdfast.planning.pipeline import Policy
from holdfast.proxy.conversation.index import Trees
from holdfast.proxy.conversation.lru import HeldBranches, OpenBranch
from holdfast.state.branch.branch import Branch
from holdfast.store.base import SessionStore
from holdfast.store.memory import MemoryStore

MOST = 256
"""[H] Branches that are held: a client and its subagents are a handful; each holds its conversation once."""
MOST_BYTES = 256 << 20
"""[H] Bytes that they may have together, about, the one talked on last not counted where it is larger alone."""

STALE = (UnknownId, LogConflict)
"""What a store says to a branch in memory whose session was removed, or removed and begun anew, by somebody else."""


class OpenBranches:
    """The branches of one store that a proxy talks on. ``policy`` says by name how sessions decide."""

    def __init__(
        self,
        means: Means,
        policy: Policy,
        named: Callable[[str], Policy],
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._means, self._policy, self._named = means, policy, named
        self._most, self._most_bytes = most, most_bytes
        self._open = HeldBranches(most, most_bytes)
        self._copies = HeldBranches(most, most_bytes)
        """Of branches that nothing can be written to for the time being."""
        self._trees = Trees(means.store)
        self._choosing: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        """Held by session while it is chosen where a request goes on."""

    def anew(self) -> OpenBranches:
        """Return the same for the store that there is now, with nothing in memory."""
        return OpenBranches(self._means, self._policy, self._named, self._most, self._most_bytes)

    @asynccontextmanager
    async def continued(self, key: str, slots: Sequence[Slot], *, aside: bool = False) -> AsyncIterator[Session]:
        """Hold the branch of session ``key`` that ``slots``, a whole conversation, continues; a new one where none is.

        Two that say the same at the same time are two branches, and so is what is said ``aside``.
        """
        if aside:
            yield (await self._from_log(key, slots, aside=True)).session
            return
        async with self._choosing.setdefault(key, Lock()):
            branch = self._open.taking(key, slots)
            if branch is not None and await self._is_behind(branch, slots):
                self.forget(branch.session)
                branch = None
            branch = branch or await self._from_log(key, slots, aside=self._is_held(key))
            branch.is_held = True
            self._open.touch(branch)
        try:
            yield branch.session
            self._copies.drop(lambda one: one.key == key)  # the log takes it again
        except StoreError as error:
            self.forget(branch.session)
            if isinstance(error, STALE):  # so are all that nobody holds: who does learns it alone
                self._open.drop(lambda one: one.key == key and not one.is_held)
            raise
        finally:
            branch.is_held = False
            if branch in self._open:
                self._open.touch(branch)
            await self._labelled(branch.session)

    @asynccontextmanager
    async def copied(self, key: str, slots: Sequence[Slot], *, stays: bool = False) -> AsyncIterator[Session]:
        """Yield a copy, in memory alone, of the branch that ``slots`` continues: what is said there is over with it.

        Unless it ``stays``: then what is said next goes on there, until the session takes something again.
        """
        branch = self._copies.taking(key, slots) if stays else None
        branch = branch or await self._from_log(key, slots, aside=True, kept=False)
        branch.is_held = True
        if stays:
            self._copies.touch(branch)
        try:
            yield branch.session
        finally:
            branch.is_held = False
            if branch in self._copies:
                self._copies.touch(branch)

    async def knows(self, key: str) -> bool:
        """Whether anything was said in session ``key``."""

        def looked_up() -> bool:
            with suppress(UnknownId):
                return self._means.store.session(key).key == key
            return False

        return bool(self._open.of(key)) or await self._means.in_worker(looked_up)

    async def glimpsed(self, key: str, slots: Sequence[Slot]) -> tuple[Branch, Policy]:
        """Return the branch that says most of what ``slots`` do, and who decides there; nothing is written.

        One in memory, held or not, else the log's; an empty one where there is none.
        """
        branches = [branch for branch in (*self._open.of(key), *self._copies.of(key)) if not branch.is_gapped]
        best = max(branches, key=lambda branch: branch.repeats(slots), default=None)
        if best is not None and all(slot.message.role != "assistant" for slot in slots[best.repeats(slots) :]):
            return best.session.journal.branch, best.session.journal.policy
        store, policy = self._means.store, self._policy

        def looked_up() -> tuple[Branch, Policy]:
            leaf = self._trees.found(key, slots, policy.settings)
            return (Branch() if leaf is None else Branch.build(store.path(key, leaf))), policy

        return await self._means.in_worker(looked_up)

    def forget(self, session: Session) -> None:
        """Hold ``session`` no more: something is wrong with it, and the log knows better."""
        self._open.drop(lambda branch: branch.session is session)

    async def _is_behind(self, branch: OpenBranch, slots: Sequence[Slot]) -> bool:
        """Whether somebody else went on with ``slots`` behind ``branch``, where that has new words to take."""
        count, settings = branch.repeats(slots), self._policy.settings
        if count == len(slots):
            return False
        key, leaf = branch.key, branch.session.journal.leaf

        def looked() -> bool:
            others = self._trees.others(key)
            if others == branch.others:
                return False
            branch.others = others
            return self._trees.is_ahead(key, slots, settings, count, leaf)

        return await self._means.in_worker(looked)

    def _is_held(self, key: str) -> bool:
        return any(branch.is_held for branch in self._open.of(key))

    async def _from_log(self, key: str, slots: Sequence[Slot], *, aside: bool, kept: bool = True) -> OpenBranch:
        """Return the branch that the log has for ``slots``, by the policy that it began with."""
        means, policy = self._means, self._policy

        def journal() -> tuple[Journal, int]:
            store, others = means.store, self._trees.others(key)  # before it is read: what comes later is seen later
            leaf = self._trees.found(key, slots, policy.settings)
            if not kept:
                store = _copy(store, key, leaf)
            opened = Journal.open(store, key, policy, leaf=leaf, clock=means.clock, ids=means.ids)
            opened.repairs += self._trees.take_repairs(key)
            if not aside:
                opened.lead()  # what others decide behind it is caught up with
            if kept:
                self._trees.look(key)
                opened.heard = self._trees.grew
            else:
                opened.moves_leaf = False  # it waits for nobody who talks on in the session
            with suppress(UnknownPolicy):
                opened.policy = self._named(opened.branch.policy or policy.name).for_session(key)
            opened.policy = opened.policy if kept else _sparing(opened.policy)
            return opened, others

        opened, others = await means.in_worker(journal)
        return OpenBranch(Session(means, opened), others)

    async def _labelled(self, session: Session) -> None:
        """Let the session's leaf be where it was talked on last."""
        journal = session.journal
        if not journal.moves_leaf and journal.leaf is not None:
            leaf = journal.leaf
            with suppress(StoreError, UnknownId):
                await self._means.in_worker(lambda: self._means.store.set_leaf(session.key, leaf))


_SHORTENING = frozenset({"results", "lines", "prune"})


def _sparing(policy: Policy) -> Policy:
    """Return ``policy`` without the stages that show parts short though they fit: nobody could read those back."""
    return replace(policy, stages=tuple([one for one in policy.stages if one[0] not in _SHORTENING]))


def _copy(store: SessionStore, key: str, leaf: str | None) -> SessionStore:
    """Return a store in memory with the branch of session ``key`` that ends with ``leaf``, if there is one."""
    copy = MemoryStore()
    if leaf is not None:
        copy.take(store.session(key), store.path(key, leaf))
    return copy
