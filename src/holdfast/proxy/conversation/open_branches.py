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

from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.log.journal import Journal
from holdfast.engine.session import Session
from holdfast.errors import LogConflict, StoreError, UnknownId, UnknownPolicy
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.pipeline import Policy
from holdfast.proxy.conversation.branch_lru import BranchLru, OpenBranch
from holdfast.proxy.conversation.index import SessionIndexes
from holdfast.state.conversation_state import ConversationState
from holdfast.store.base import SessionStore
from holdfast.store.memory import MemoryStore

MAX_BRANCHES = 256
"""[H] Branches that are held: a client and its subagents are a handful; each holds its conversation once."""
MAX_BRANCH_BYTES = 256 << 20
"""[H] Bytes that they may have together, about, the one talked on last not counted where it is larger alone."""

STALE_ERRORS = (UnknownId, LogConflict)
"""What a store says to a branch in memory whose session was removed, or removed and begun anew, by somebody else."""


class BranchPool:
    """The branches of one store that a proxy talks on. ``policy`` says by name how sessions decide."""

    def __init__(
        self,
        resources: EngineResources,
        policy: Policy,
        get_policy: Callable[[str], Policy],
        max_branches: int = MAX_BRANCHES,
        most_bytes: int = MAX_BRANCH_BYTES,
    ) -> None:
        self._means, self._policy, self._get_policy = resources, policy, get_policy
        self._most, self._most_bytes = max_branches, most_bytes
        self._branches = BranchLru(max_branches, most_bytes)
        self._copies = BranchLru(max_branches, most_bytes)
        """Of branches that nothing can be written to for the time being."""
        self._indexes = SessionIndexes(resources.store)
        self._session_locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        """Held by session while it is chosen where a request goes on."""

    def make_empty_copy(self) -> BranchPool:
        """Return the same for the store that there is now, with nothing in memory."""
        return BranchPool(self._means, self._policy, self._get_policy, self._most, self._most_bytes)

    @asynccontextmanager
    async def continue_branch(
        self, key: str, sized_messages: Sequence[SizedMessage], *, aside: bool = False
    ) -> AsyncIterator[Session]:
        """Hold the branch of session ``key`` that ``sized_messages``, a whole conversation, continues; a new one where
        none is.

        Two that say the same at the same time are two branches, and so is what is said ``aside``.
        """
        if aside:
            yield (await self._open_from_log(key, sized_messages, aside=True)).session
            return
        async with self._session_locks.setdefault(key, Lock()):
            branch = self._branches.find_continuable(key, sized_messages)
            if branch is not None and await self._is_outdated(branch, sized_messages):
                self.drop_session(branch.session)
                branch = None
            branch = branch or await self._open_from_log(key, sized_messages, aside=self._has_held_branch(key))
            branch.is_held = True
            self._branches.touch(branch)
        try:
            yield branch.session
            self._copies.drop_where(lambda candidate: candidate.key == key)  # the log takes it again
        except StoreError as error:
            self.drop_session(branch.session)
            if isinstance(error, STALE_ERRORS):  # so are all that nobody holds: who does learns it alone
                self._branches.drop_where(lambda candidate: candidate.key == key and not candidate.is_held)
            raise
        finally:
            branch.is_held = False
            if branch in self._branches:
                self._branches.touch(branch)
            await self._move_session_leaf(branch.session)

    @asynccontextmanager
    async def continue_copy(
        self, key: str, sized_messages: Sequence[SizedMessage], *, stays: bool = False
    ) -> AsyncIterator[Session]:
        """Yield a copy, in memory alone, of the branch that ``sized_messages`` continues: what is said there is over
        with it.

        Unless it ``stays``: then what is said next goes on there, until the session takes something again.
        """
        branch = self._copies.find_continuable(key, sized_messages) if stays else None
        branch = branch or await self._open_from_log(key, sized_messages, aside=True, is_persistent=False)
        branch.is_held = True
        if stays:
            self._copies.touch(branch)
        try:
            yield branch.session
        finally:
            branch.is_held = False
            if branch in self._copies:
                self._copies.touch(branch)

    async def has_session(self, key: str) -> bool:
        """Whether anything was said in session ``key``."""

        def looked_up() -> bool:
            with suppress(UnknownId):
                return self._means.store.get_session(key).key == key
            return False

        return bool(self._branches.list_branches(key)) or await self._means.run_in_worker(looked_up)

    async def find_closest_state(
        self, key: str, sized_messages: Sequence[SizedMessage]
    ) -> tuple[ConversationState, Policy]:
        """Return the branch that says most of what ``sized_messages`` do, and who decides there; nothing is written.

        One in memory, held or not, else the log's; an empty one where there is none.
        """
        branches = [
            branch
            for branch in (*self._branches.list_branches(key), *self._copies.list_branches(key))
            if not branch.is_gapped
        ]
        best = max(branches, key=lambda branch: branch.count_repeated(sized_messages), default=None)
        if best is not None and all(
            sized_message.message.role != "assistant"
            for sized_message in sized_messages[best.count_repeated(sized_messages) :]
        ):
            return best.session.journal.state, best.session.journal.policy
        store, policy = self._means.store, self._policy

        def looked_up() -> tuple[ConversationState, Policy]:
            leaf = self._indexes.find_leaf(key, sized_messages, policy.settings)
            return (
                ConversationState() if leaf is None else ConversationState.from_entries(store.read_path(key, leaf))
            ), policy

        return await self._means.run_in_worker(looked_up)

    def drop_session(self, session: Session) -> None:
        """Hold ``session`` no more: something is wrong with it, and the log knows better."""
        self._branches.drop_where(lambda branch: branch.session is session)

    async def _is_outdated(self, branch: OpenBranch, sized_messages: Sequence[SizedMessage]) -> bool:
        """Whether somebody else went on with ``sized_messages`` behind ``branch``, where that has new words to take."""
        count, settings = branch.count_repeated(sized_messages), self._policy.settings
        if count == len(sized_messages):
            return False
        key, leaf = branch.key, branch.session.journal.leaf

        def looked() -> bool:
            foreign_writes = self._indexes.count_foreign_writes(key)
            if foreign_writes == branch.foreign_writes:
                return False
            branch.foreign_writes = foreign_writes
            return self._indexes.is_ahead(key, sized_messages, settings, count, leaf)

        return await self._means.run_in_worker(looked)

    def _has_held_branch(self, key: str) -> bool:
        return any(branch.is_held for branch in self._branches.list_branches(key))

    async def _open_from_log(
        self, key: str, sized_messages: Sequence[SizedMessage], *, aside: bool, is_persistent: bool = True
    ) -> OpenBranch:
        """Return the branch that the log has for ``sized_messages``, by the policy that it began with."""
        resources, policy = self._means, self._policy

        def journal() -> tuple[Journal, int]:
            store, foreign_writes = (
                resources.store,
                self._indexes.count_foreign_writes(key),
            )  # before it is read: what comes later is seen later
            leaf = self._indexes.find_leaf(key, sized_messages, policy.settings)
            if not is_persistent:
                store = _copy_to_memory(store, key, leaf)
            opened_journal = Journal.open(store, key, policy, leaf=leaf, clock=resources.clock, ids=resources.make_ids)
            opened_journal.repairs += self._indexes.take_repairs(key)
            if not aside:
                opened_journal.take_session_leaf()  # what others decide behind it is caught up with
            if is_persistent:
                self._indexes.follow_session(key)
                opened_journal.append_listener = self._indexes.add_appended
            else:
                opened_journal.moves_leaf = False  # it waits for nobody who talks on in the session
            with suppress(UnknownPolicy):
                opened_journal.policy = self._get_policy(opened_journal.state.policy_name or policy.name).for_session(
                    key
                )
            opened_journal.policy = (
                opened_journal.policy if is_persistent else _remove_shortening_stages(opened_journal.policy)
            )
            return opened_journal, foreign_writes

        opened_journal, foreign_writes = await resources.run_in_worker(journal)
        return OpenBranch(Session(resources, opened_journal), foreign_writes)

    async def _move_session_leaf(self, session: Session) -> None:
        """Let the session's leaf be where it was talked on last."""
        journal = session.journal
        if not journal.moves_leaf and journal.leaf is not None:
            leaf = journal.leaf
            with suppress(StoreError, UnknownId):
                await self._means.run_in_worker(lambda: self._means.store.set_leaf(session.key, leaf))


_SHORTENING_STAGES = frozenset({"results", "lines", "prune"})


def _remove_shortening_stages(policy: Policy) -> Policy:
    """Return ``policy`` without the stages that show parts short though they fit: nobody could read those back."""
    return replace(policy, stages=tuple([stage for stage in policy.stages if stage[0] not in _SHORTENING_STAGES]))


def _copy_to_memory(store: SessionStore, key: str, leaf: str | None) -> SessionStore:
    """Return a store in memory with the branch of session ``key`` that ends with ``leaf``, if there is one."""
    copy = MemoryStore()
    if leaf is not None:
        copy.adopt_session(store.get_session(key), store.read_path(key, leaf))
    return copy
