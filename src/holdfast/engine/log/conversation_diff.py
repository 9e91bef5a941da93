"""Match the whole conversation that a client sends against the one in the log."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from operator import is_
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.log.echo_match import adopt_client_bytes, adopt_piece_bytes, find_message_pieces, join_message_run
from holdfast.messages.equality import is_equivalent_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.planning.settings import Settings
from holdfast.planning.stages.append_limit import cap_message_texts
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, MessageEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.fold.rewind import replace_raw_bytes, rewind_state
from holdfast.state.persistent_sequence import PersistentSequence, count_shared_prefix_items
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target

# Clients put a clock, the working folder or a list of files into the system prompt of each request. A message that
# differs by more is taken for another one: its size decides what fits. 1,024 is chosen by judgement: a file list of a
# hundred lines passes, a second prompt does not.
MAX_SYSTEM_SIZE_DIFFERENCE = 1_024
"""Tokens by which a system message at the start may differ from the logged one and still take its place."""

SYSTEM_MESSAGES_FIELD = "system messages"
"""Name under which system messages that differ from the logged ones count as a field of the setup."""
SYSTEM_DIGEST_CHARS = 16
"""Characters of the digest of that field, as many as those of other fields have."""


class MessageMatches(Struct, frozen=True):
    """Messages of the log, and the client's messages that repeat them.

    The first ``one_to_one_count`` correspond one by one; the rest as a whole, grouped differently.
    """

    logged: Sequence[SizedMessage] = ()
    client: Sequence[SizedMessage] = ()
    one_to_one_count: int = 0

    def count_still_matched(self, logged: Sequence[SizedMessage], messages: Sequence[SizedMessage]) -> tuple[int, int]:
        """Return how many messages at the start of ``logged`` and of ``messages`` are matched ones.

        Both numbers cover all matches if both sequences still begin with all of them; otherwise they are equal and
        cover only messages that correspond one by one. Messages are compared by identity: equal ones in new objects
        are compared again by the caller, which then shares the new objects.
        """
        logged_count = count_shared_prefix_items(logged, self.logged)
        message_count = count_shared_prefix_items(messages, self.client)
        # A shared prefix may be equal without being identical. If its last items are not identical, count those that
        # are.
        if message_count and messages[message_count - 1] is not self.client[message_count - 1]:
            message_count = [*map(is_, messages, self.client), False].index(False)
        if (logged_count, message_count) == (len(self.logged), len(self.client)):
            return logged_count, message_count
        single_count = min(logged_count, message_count, self.one_to_one_count)
        return single_count, single_count


class PrefixMatch(Struct, frozen=True):
    """The part of the log that a conversation repeats."""

    messages: Sequence[SizedMessage]
    """The repeated messages of the log, in the client's bytes."""
    client_count: int
    """How many of the client's messages they correspond to."""
    one_to_one_count: int
    """How many of them, from the first one on, correspond to one message each."""
    unchanged_count: int = 0
    """How many of them, from the first one on, are known to be the log's own objects."""

    def keep_one_to_one(self) -> PrefixMatch:
        """Return the match without the messages that are grouped differently."""
        count = self.one_to_one_count
        return PrefixMatch(self.messages[:count], count, count, min(count, self.unchanged_count))


class _MatchedGroup(NamedTuple):
    """Messages of the log, in the client's bytes, and how many of the client's messages repeat them."""

    messages: list[SizedMessage]
    client_count: int


def match_known_prefix(
    logged: Sequence[SizedMessage],
    client_messages: Sequence[SizedMessage],
    settings: Settings,
    matched: MessageMatches = MessageMatches(),
) -> PrefixMatch:
    """Find how much of ``logged``, from its first message on, the conversation ``client_messages`` repeats.

    An answer may come back in pieces, one for each of its chunks, and tool results joined or one by one, as their API
    has them. Messages known to match from ``matched`` are not compared again.

    System messages that both sides begin with belong to the request's setup rather than its past: they match whatever
    they say, as long as their sizes are close.
    """
    logged_count, client_count = matched.count_still_matched(logged, client_messages)
    messages = [*logged[:logged_count]]
    system_count = _count_shared_system_messages(logged, client_messages)
    # Index of the first message that does not correspond to exactly one of the client's.
    first_regrouped: int | None = None
    is_one_to_one = logged_count == client_count <= matched.one_to_one_count
    if not is_one_to_one:
        first_regrouped = matched.one_to_one_count
    while len(messages) < len(logged) and client_count < len(client_messages):
        logged_message, client_message = logged[len(messages)], client_messages[client_count]
        if client_count < system_count:
            messages.append(_keep_logged_size(logged_message, client_message))
            client_count += 1
        elif _is_same_message(logged_message, client_message, settings):
            messages.append(adopt_client_bytes(logged_message, client_message))
            client_count += 1
        else:
            group = _match_regrouped_messages(logged, len(messages), client_messages, client_count)
            if group is None:
                break
            if first_regrouped is None:
                first_regrouped = len(messages)
            messages += group.messages
            client_count += group.client_count
    one_to_one_count = client_count if first_regrouped is None else first_regrouped
    return PrefixMatch(messages, client_count, one_to_one_count, unchanged_count=logged_count)


def _match_regrouped_messages(
    logged: Sequence[SizedMessage],
    logged_index: int,
    client_messages: Sequence[SizedMessage],
    client_index: int,
) -> _MatchedGroup | None:
    """Match messages that a client split or joined, from the two indexes on; return None if they differ.

    First one logged message against several pieces: the pieces' bytes can then stand in its place. Else all messages
    that one side said without a break, as a whole: their number may differ, and the log keeps its own bytes.
    """
    logged_message = logged[logged_index]
    logged_run = _collect_same_role_run(logged, logged_index)
    client_run = _collect_same_role_run(client_messages, client_index)
    pieces = find_message_pieces(logged_message, client_run)
    if len(pieces) > 1 and is_equivalent_message(logged_message.message, join_message_run(pieces)):
        return _MatchedGroup([adopt_piece_bytes(logged_message, pieces)], len(pieces))
    if len(logged_run) < 2 and len(client_run) < 2:
        return None  # one message each: they were compared already
    if not is_equivalent_message(join_message_run(logged_run), join_message_run(client_run)):
        return None
    return _MatchedGroup(logged_run, len(client_run))


class _Comparison(NamedTuple):
    """The result of ``match_known_prefix`` for some arguments."""

    arguments: tuple[PersistentSequence[SizedMessage], tuple[SizedMessage, ...], Settings]
    result: PrefixMatch


class ConversationMatcher:
    """Matches the successive conversations of one client against one branch, comparing each message once."""

    def __init__(self) -> None:
        self._matches = MessageMatches()
        self._last_comparison: _Comparison | None = None
        """Kept because the proxy asks which branch a conversation continues, and then the branch asks the same."""

    def match_prefix(
        self,
        logged: PersistentSequence[SizedMessage],
        client_messages: tuple[SizedMessage, ...],
        settings: Settings,
    ) -> PrefixMatch:
        """Do what ``match_known_prefix`` does, or return its last result if the arguments are the same objects."""
        arguments = (logged, client_messages, settings)
        comparison = self._last_comparison
        if comparison is None or not all(map(is_, arguments, comparison.arguments)):
            result = match_known_prefix(logged.slice(), client_messages, settings, self._matches)
            comparison = self._last_comparison = _Comparison(arguments, result)
        return comparison.result

    def remember_match(
        self,
        logged: PersistentSequence[SizedMessage],
        messages: tuple[SizedMessage, ...],
        repeated_prefix: PrefixMatch,
    ) -> None:
        """Remember that ``messages`` repeat ``logged``, now that their new part was appended too.

        ``repeated_prefix`` is the match from before that.
        """
        is_one_to_one = (
            repeated_prefix.one_to_one_count == repeated_prefix.client_count == len(repeated_prefix.messages)
        )
        if is_one_to_one:
            one_to_one_count = len(logged)
        else:
            one_to_one_count = repeated_prefix.one_to_one_count
        self._matches = MessageMatches(logged.slice(), messages, one_to_one_count)


def add_system_messages_to_setup(
    setup: RequestSetup, logged: Sequence[SizedMessage], messages: Sequence[SizedMessage]
) -> RequestSetup:
    """Return ``setup`` with the system messages at the start of ``messages`` that differ from the ``logged`` ones.

    The log keeps size and digest of its own messages, so that it gives the same state after a restart. The difference
    counts as setup: its tokens are added there, and its digest tells that the cached prefix is another one.
    """
    system_count = _count_shared_system_messages(logged, messages)
    extra_tokens = 0
    has_changed = False
    for logged_message, client_message in zip(logged[:system_count], messages, strict=False):
        if logged_message.digest != client_message.digest:
            has_changed = True
            extra_tokens += client_message.tokens - logged_message.tokens
    if not has_changed:
        return setup
    digests = [setup.digest.encode(), *(message.digest for message in messages[:system_count])]
    digest = blake2b(b"\x00".join(digests), digest_size=16).hexdigest()
    field_digests = (*setup.field_digests, (SYSTEM_MESSAGES_FIELD, digest[:SYSTEM_DIGEST_CHARS]))
    return replace(setup, digest=digest, tokens=setup.tokens + max(0, extra_tokens), field_digests=field_digests)


def plan_with_existing_decisions(
    state: ConversationState,
    policy: Policy,
    messages: Sequence[SizedMessage],
    target: Target,
) -> Plan:
    """Plan a request for ``messages`` with the decisions that are in force for the part that they repeat.

    No decision is made and no entry is written. Messages without a decision keep the client's bytes.
    """
    logged = state.history.sized_messages.slice()
    repeated_prefix = match_known_prefix(logged, messages, policy.settings)
    target = replace(target, setup=add_system_messages_to_setup(target.setup, logged, messages))
    rewound_state = rewind_state(state, len(repeated_prefix.messages))
    rewound_state = replace_raw_bytes(rewound_state, repeated_prefix.messages)
    new_entries = [Entry("", None, MessageEntry(message)) for message in messages[repeated_prefix.client_count :]]
    request_state = apply_entries(rewound_state, new_entries)
    return plan_request(
        request_state,
        target,
        replace(policy, stages=()),
        PlanInputs(can_spill=False),
    )


def replace_with_client_bytes(
    state: ConversationState, messages: PersistentSequence[SizedMessage]
) -> ConversationState:
    """Return ``state`` with the client's bytes for the messages at its start that ``messages`` repeats.

    Used after the log was read again: it holds the bytes that were appended, the client sends its own, and only its own
    continue what the provider has cached.
    """
    client_messages = messages.slice()
    logged_messages = state.history.sized_messages.slice(0, len(client_messages))
    for index, (client_message, logged_message) in enumerate(zip(client_messages, logged_messages, strict=False)):
        if not _has_same_size_and_digest(client_message, logged_message):
            return replace_raw_bytes(state, client_messages[:index])
    return replace_raw_bytes(state, client_messages[: len(state.history.sized_messages)])


def _has_same_size_and_digest(client_message: SizedMessage, logged: SizedMessage) -> bool:
    return (client_message.tokens, client_message.digest) == (logged.tokens, logged.digest)


def _count_shared_system_messages(logged: Sequence[SizedMessage], messages: Sequence[SizedMessage]) -> int:
    """Return how many system messages both begin with, up to the first pair whose sizes are not close."""
    system_count = min(_count_leading_system_messages(logged), _count_leading_system_messages(messages))
    for index in range(system_count):
        if abs(logged[index].tokens - messages[index].tokens) > MAX_SYSTEM_SIZE_DIFFERENCE:
            return index
    return system_count


def _count_leading_system_messages(messages: Sequence[SizedMessage]) -> int:
    for index, sized_message in enumerate(messages):
        if sized_message.message.role != "system":
            return index
    return len(messages)


def _keep_logged_size(logged: SizedMessage, client_message: SizedMessage) -> SizedMessage:
    """Return ``client_message`` with the size and digest of the ``logged`` message whose place it takes."""
    if client_message.raw is not None and (client_message.api, client_message.raw) == (logged.api, logged.raw):
        return logged
    if _has_same_size_and_digest(client_message, logged):
        return client_message  # the same object, which the client's next request holds too
    return replace(client_message, tokens=logged.tokens, digest=logged.digest)


def _collect_same_role_run(messages: Sequence[SizedMessage], start: int) -> list[SizedMessage]:
    """Return the messages from index ``start`` on that have the same role without a break."""
    role = messages[start].message.role
    stop = start
    while stop < len(messages) and messages[stop].message.role == role:
        stop += 1
    return list(messages[start:stop])


def _is_same_message(logged: SizedMessage, client_message: SizedMessage, settings: Settings) -> bool:
    """Return whether a client's message is the logged one; the cheap comparisons come first."""
    if client_message.digest == logged.digest:
        return True
    if client_message.raw is not None and client_message.raw == logged.raw:
        return True
    if is_equivalent_message(logged.message, client_message.message):
        return True
    # A text over the append limit was shortened when it was appended, and the client still sends all of it.
    capped_message, _ = cap_message_texts(client_message.message, settings)
    return is_equivalent_message(logged.message, capped_message)
