"""The branches in use: find the one that a request continues without reading the store again.

This is memory only. What is not here is looked up in the log, which says the same. Only what the log could not take is
kept here alone, until it takes something of that session again.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.log.branch_copy import copy_branch_to_memory, remove_shortening_stages
from holdfast.engine.log.journal import Journal
from holdfast.engine.session import Session
from holdfast.errors import LogConflict, StoreError, UnknownId, UnknownPolicy
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.pipeline import Policy
from holdfast.proxy.conversation.branch_lru import BranchLru, OpenBranch
from holdfast.proxy.conversation.index import SessionIndexes
from holdfast.state.conversation_state import ConversationState

MAX_BRANCHES = 256
"""Branches that are kept: a client and its subagents need a handful. Chosen by judgement."""
MAX_BRANCH_BYTES = 256 << 20
"""Approximate memory of them all, apart from the one used last if it is larger alone. Chosen by judgement."""

STALE_ERRORS = (UnknownId, LogConflict)
"""Errors of the store for a branch in memory whose session another process removed, and maybe created anew."""


class BranchPool:
    """The branches of one store that a proxy works on. ``get_policy`` returns the policy of a name."""

    def __init__(
        self,
        resources: EngineResources,
        policy: Policy,
        get_policy: Callable[[str], Policy],
        max_branches: int = MAX_BRANCHES,
        max_bytes: int = MAX_BRANCH_BYTES,
    ) -> None:
        self._resources = resources
        self._policy = policy
        self._get_policy = get_policy
        self._max_branches = max_branches
        self._max_bytes = max_bytes
        self._branches = BranchLru(max_branches, max_bytes)
        self._copies = BranchLru(max_branches, max_bytes)
        """Copies, in memory alone, of branches that cannot be written at the moment."""
        self._indexes = SessionIndexes(resources.store)
        self._session_locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        """Held, by session, while a request chooses its branch; otherwise two could choose the same one."""

    def make_empty_copy(self) -> BranchPool:
        """Return a pool with the same settings for the current store, without any branches."""
        return BranchPool(
            self._resources,
            self._policy,
            self._get_policy,
            self._max_branches,
            self._max_bytes,
        )

    @asynccontextmanager
    async def continue_branch(
        self,
        key: str,
        sized_messages: Sequence[SizedMessage],
        *,
        aside: bool = False,
        accepts_answers: bool = False,
    ) -> AsyncIterator[Session]:
        """Hold the branch of session ``key`` that a whole conversation continues, or else a new one.

        Two requests with the same conversation at the same time get two branches, and so does one that is ``aside``:
        it must not move the branch on which the conversation goes on. With ``accepts_answers`` the conversation may
        bring answers that the branch in memory does not have: in this session nobody records them.
        """
        if aside:
            yield (await self._open_from_log(key, sized_messages, aside=True)).session
            return
        async with self._session_locks.setdefault(key, Lock()):
            branch = self._branches.find_continuable(key, sized_messages, accepts_answers=accepts_answers)
            if branch is not None and await self._is_outdated(branch, sized_messages):
                self.drop_session(branch.session)
                branch = None
            if branch is None:
                branch = await self._open_from_log(key, sized_messages, aside=self._has_held_branch(key))
            branch.is_held = True
            self._branches.touch(branch)
        try:
            yield branch.session
            # The log can be written again, so the copies are not needed any more.
            self._copies.drop_where(lambda candidate: candidate.key == key)
        except StoreError as error:
            self.drop_session(branch.session)
            # The session is gone, so its other branches are stale too. A request that holds one finds out by itself.
            if isinstance(error, STALE_ERRORS):
                self._branches.drop_where(lambda candidate: candidate.key == key and not candidate.is_held)
            raise
        finally:
            branch.is_held = False
            if branch in self._branches:
                self._branches.touch(branch)
            await self._move_session_leaf(branch.session)

    @asynccontextmanager
    async def continue_copy(
        self,
        key: str,
        sized_messages: Sequence[SizedMessage],
        *,
        stays: bool = False,
    ) -> AsyncIterator[Session]:
        """Hold a copy, in memory alone, of the branch that a whole conversation continues.

        It is dropped with the block, unless it ``stays``: then the next request continues it, until the session can be
        written again.
        """
        branch = None
        if stays:
            branch = self._copies.find_continuable(key, sized_messages)
        if branch is None:
            branch = await self._open_from_log(key, sized_messages, aside=True, is_persistent=False)
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
        """Return whether session ``key`` exists, in memory or in the store."""

        def is_in_store() -> bool:
            with suppress(UnknownId):
                return self._resources.store.get_session(key).key == key
            return False

        if self._branches.list_branches(key):
            return True
        return await self._resources.run_in_worker(is_in_store)

    async def find_closest_state(
        self,
        key: str,
        sized_messages: Sequence[SizedMessage],
    ) -> tuple[ConversationState, Policy]:
        """Return the state and the policy of the branch that has most of ``sized_messages``, without writing.

        A branch in memory, held or not, comes before one in the log; without either the state is empty.
        """
        # Also branches that a request holds at the moment, since nothing is changed here.
        kept_branches = [*self._branches.list_branches(key), *self._copies.list_branches(key)]
        branches = [branch for branch in kept_branches if not branch.is_gapped]
        best = max(branches, key=lambda branch: branch.count_repeated(sized_messages), default=None)
        if best is not None:
            new_messages = sized_messages[best.count_repeated(sized_messages) :]
            # An answer that this branch does not have was given elsewhere, and the log may know where.
            has_foreign_answer = any(sized_message.message.role == "assistant" for sized_message in new_messages)
            if not has_foreign_answer:
                return best.session.journal.state, best.session.journal.policy
        store = self._resources.store
        policy = self._policy

        def read_closest_state() -> ConversationState:
            leaf = self._indexes.find_leaf(key, sized_messages, policy.settings)
            if leaf is None:
                return ConversationState()
            return ConversationState.from_entries(store.read_path(key, leaf))

        return await self._resources.run_in_worker(read_closest_state), policy

    def drop_session(self, session: Session) -> None:
        """Forget the branch of ``session``: something is wrong with it, and the log knows better."""
        self._branches.drop_where(lambda branch: branch.session is session)

    async def _is_outdated(self, branch: OpenBranch, sized_messages: Sequence[SizedMessage]) -> bool:
        """Return whether another process continued this conversation after ``branch``, if it has new messages."""
        count = branch.count_repeated(sized_messages)
        settings = self._policy.settings
        # Without new messages it does not matter who is ahead: the same answer is asked for again.
        if count == len(sized_messages):
            return False
        key = branch.key
        leaf = branch.session.journal.leaf

        def is_ahead_in_store() -> bool:
            foreign_writes = self._indexes.count_foreign_writes(key)
            if foreign_writes == branch.foreign_writes:
                return False
            branch.foreign_writes = foreign_writes
            return self._indexes.is_ahead(key, sized_messages, settings, count, leaf)

        return await self._resources.run_in_worker(is_ahead_in_store)

    def _has_held_branch(self, key: str) -> bool:
        return any(branch.is_held for branch in self._branches.list_branches(key))

    async def _open_from_log(
        self,
        key: str,
        sized_messages: Sequence[SizedMessage],
        *,
        aside: bool,
        is_persistent: bool = True,
    ) -> OpenBranch:
        """Open the branch that the log has for ``sized_messages``, with the policy that it began with."""
        resources = self._resources
        default_policy = self._policy

        def open_journal() -> tuple[Journal, int]:
            store = resources.store
            # Counted before the log is read, so that anything written meanwhile is noticed at the next request.
            foreign_writes = self._indexes.count_foreign_writes(key)
            leaf = self._indexes.find_leaf(key, sized_messages, default_policy.settings)
            if not is_persistent:
                store = copy_branch_to_memory(store, key, leaf)
            journal = Journal.open(
                store,
                key,
                default_policy,
                leaf=leaf,
                clock=resources.clock,
                ids=resources.make_ids,
            )
            journal.repairs += self._indexes.take_repairs(key)
            # The journal then catches up with decisions that others append after the leaf.
            if not aside:
                journal.take_session_leaf()
            if is_persistent:
                self._indexes.follow_session(key)
                journal.append_listener = self._indexes.add_appended
            else:
                # A copy need not wait for others who move the session's leaf.
                journal.moves_leaf = False
            # A policy that was removed from the configuration is replaced by the default one.
            with suppress(UnknownPolicy):
                policy_name = journal.state.policy_name or default_policy.name
                journal.policy = self._get_policy(policy_name).for_session(key)
            if not is_persistent:
                journal.policy = remove_shortening_stages(journal.policy)
            return journal, foreign_writes

        journal, foreign_writes = await resources.run_in_worker(open_journal)
        return OpenBranch(Session(resources, journal), foreign_writes)

    async def _move_session_leaf(self, session: Session) -> None:
        """Move the session's leaf to the branch that was used last, so that tools show that one."""
        journal = session.journal
        if not journal.moves_leaf and journal.leaf is not None:
            leaf = journal.leaf
            with suppress(StoreError, UnknownId):
                await self._resources.run_in_worker(lambda: self._resources.store.set_leaf(session.key, leaf))
