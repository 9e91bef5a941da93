"""What a whole conversation, as a client sends it, repeats of the one in the log."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from operator import is_

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


class MessageMatches(Struct, frozen=True):
    """Messages of the log, and those of a conversation that repeat them: the first ``one_to_one_count`` one by one."""

    logged: Sequence[SizedMessage] = ()
    client: Sequence[SizedMessage] = ()
    one_to_one_count: int = 0

    def count_still_matched(self, logged: Sequence[SizedMessage], messages: Sequence[SizedMessage]) -> tuple[int, int]:
        """Return how many messages at the start of both are such twins: all, or as many as are so one by one.

        Those that were said in other objects are compared again, and the log takes the new ones up.
        """
        logged_count, message_count = (
            count_shared_prefix_items(logged, self.logged),
            count_shared_prefix_items(messages, self.client),
        )
        if message_count and messages[message_count - 1] is not self.client[message_count - 1]:
            message_count = [*map(is_, messages, self.client), False].index(False)
        if (logged_count, message_count) == (len(self.logged), len(self.client)):
            return logged_count, message_count
        single_count = min(logged_count, message_count, self.one_to_one_count)
        return single_count, single_count


class PrefixMatch(Struct, frozen=True):
    """What a conversation repeats: ``messages`` of the log, in its own bytes, for which it takes ``client_count``
    messages.
    """

    messages: Sequence[SizedMessage]
    client_count: int
    one_to_one_count: int
    """How many of them, from the first on, are repeated one by one."""
    unchanged_count: int = 0
    """How many of them, from the first on, are known to be the log's own."""


def match_known_prefix(
    logged: Sequence[SizedMessage],
    client_messages: Sequence[SizedMessage],
    settings: Settings,
    matched: MessageMatches = MessageMatches(),
) -> PrefixMatch:
    """Return what ``client_messages``, a whole conversation, repeats of ``logged``, from the first message on.

    An answer may come back in pieces, as its chunks came, and results together or one by one, as their API has them.
    System messages that both open with are the request's frame and not its past: the same place, whatever they say, as
    long as they are about as large.
    What is known to be alike by ``matched`` is not compared again.
    """
    standing, count = matched.count_still_matched(logged, client_messages)
    opening = _count_shared_system_messages(logged, client_messages)
    sized_messages, single = (
        [*logged[:standing]],
        -1 if standing == count <= matched.one_to_one_count else matched.one_to_one_count,
    )
    while len(sized_messages) < len(logged) and count < len(client_messages):
        sized_message, client_message = logged[len(sized_messages)], client_messages[count]
        if count < opening:
            sized_messages.append(_keep_logged_size(sized_message, client_message))
            count += 1
            continue
        if _is_same_message(sized_message, client_message, settings):
            sized_messages.append(adopt_client_bytes(sized_message, client_message))
            count += 1
            continue
        logged_run, client_run = (
            _collect_same_role_run(logged, len(sized_messages)),
            _collect_same_role_run(client_messages, count),
        )
        pieces = find_message_pieces(sized_message, client_run)
        if len(pieces) > 1 and is_equivalent_message(sized_message.message, join_message_run(pieces)):
            logged_run, client_run = [adopt_piece_bytes(sized_message, pieces)], pieces
        elif max(len(logged_run), len(client_run)) < 2 or not is_equivalent_message(
            join_message_run(logged_run), join_message_run(client_run)
        ):
            break
        single = len(sized_messages) if single < 0 else single
        sized_messages += logged_run
        count += len(client_run)
    return PrefixMatch(sized_messages, count, count if single < 0 else single, standing)


class ConversationMatcher:
    """How whole conversations follow one branch, one after the other: what was compared is not compared again."""

    def __init__(self) -> None:
        self._twins = MessageMatches()
        self._compared: (
            tuple[tuple[PersistentSequence[SizedMessage], tuple[SizedMessage, ...], Settings], PrefixMatch] | None
        ) = None
        """The last comparison: of which messages with which others by which settings, and what it found."""

    def match_prefix(
        self, logged: PersistentSequence[SizedMessage], client_messages: tuple[SizedMessage, ...], settings: Settings
    ) -> PrefixMatch:
        """Return what ``client_messages`` repeats of ``logged``; of the same again it is known."""
        arguments, comparison = (logged, client_messages, settings), self._compared
        if comparison is None or not all(map(is_, arguments, comparison[0])):
            comparison = self._compared = (
                arguments,
                match_known_prefix(logged.slice(), client_messages, settings, self._twins),
            )
        return comparison[1]

    def remember_match(
        self, logged: PersistentSequence[SizedMessage], messages: tuple[SizedMessage, ...], repeated_prefix: PrefixMatch
    ) -> None:
        """Know which messages repeat each other, now that what is new of ``messages`` stands behind the
        ``repeated_prefix`` too.
        """
        is_single = repeated_prefix.one_to_one_count == repeated_prefix.client_count == len(repeated_prefix.messages)
        self._twins = MessageMatches(
            logged.slice(), messages, len(logged) if is_single else repeated_prefix.one_to_one_count
        )


def add_system_messages_to_setup(
    setup: RequestSetup, logged: Sequence[SizedMessage], messages: Sequence[SizedMessage]
) -> RequestSetup:
    """Return ``setup`` with what ``messages`` opens with in other words than the log, whose ``logged`` slots say which.

    Those slots keep size and digest of the log, so that it tells the same after a restart: the rest is the frame's.
    """
    opening = _count_shared_system_messages(logged, messages)
    pairs = [
        (sized_message, client_message)
        for sized_message, client_message in zip(logged[:opening], messages, strict=False)
        if sized_message.digest != client_message.digest
    ]
    if not pairs:
        return setup
    digest_input = b"\x00".join(
        [setup.digest.encode(), *(client_message.digest for client_message in messages[:opening])]
    )
    extra_tokens = max(0, sum(client_message.tokens - sized_message.tokens for sized_message, client_message in pairs))
    return replace(setup, digest=blake2b(digest_input, digest_size=16).hexdigest(), tokens=setup.tokens + extra_tokens)


def plan_with_existing_decisions(
    state: ConversationState, policy: Policy, messages: Sequence[SizedMessage], target: Target
) -> Plan:
    """Return what a request that says ``messages``, and no more, shows by the decisions there are of what it repeats.

    Nothing is written, and what no decision is about has the bytes that it was said in. Nothing is decided either.
    """
    logged = state.history.sized_messages.slice()
    repeated_prefix = match_known_prefix(logged, messages, policy.settings)
    count, target = (
        len(repeated_prefix.messages),
        replace(target, setup=add_system_messages_to_setup(target.setup, logged, messages)),
    )
    alone = replace_raw_bytes(rewind_state(state, count), repeated_prefix.messages)
    alone = apply_entries(
        alone,
        [Entry("", None, MessageEntry(sized_message)) for sized_message in messages[repeated_prefix.client_count :]],
    )
    return plan_request(alone, target, replace(policy, stages=()), PlanInputs(can_spill=False))


def replace_with_client_bytes(
    state: ConversationState, messages: PersistentSequence[SizedMessage]
) -> ConversationState:
    """Return ``state``, as the log has it, in the words of its client, as far as ``messages`` says the same
    messages.
    """
    client_messages = messages.slice()
    pairs = zip(client_messages, state.history.sized_messages.slice(0, len(client_messages)), strict=False)
    parts = next(
        (
            at
            for at, (client_message, sized_message) in enumerate(pairs)
            if not _has_same_size_and_digest(client_message, sized_message)
        ),
        len(state.history.sized_messages),
    )
    return replace_raw_bytes(state, client_messages[:parts])


def _has_same_size_and_digest(client_message: SizedMessage, logged: SizedMessage) -> bool:
    """Whether ``client_message`` is what a conversation said in the place of ``logged``, as ``match_known_prefix``
    told.
    """
    return (client_message.tokens, client_message.digest) == (logged.tokens, logged.digest)


def _count_shared_system_messages(logged: Sequence[SizedMessage], messages: Sequence[SizedMessage]) -> int:
    """Return how many system messages both open with, the first of each being about as large as the other."""
    opening = min(_count_leading_system_messages(logged), _count_leading_system_messages(messages))
    return next(
        (at for at in range(opening) if abs(logged[at].tokens - messages[at].tokens) > MAX_SYSTEM_SIZE_DIFFERENCE),
        opening,
    )


MAX_SYSTEM_SIZE_DIFFERENCE = 1_024
"""[H] Tokens by which a system message may be larger or smaller and keep its place: a clock, a list of files."""


def _count_leading_system_messages(messages: Sequence[SizedMessage]) -> int:
    """Return how many system messages ``messages`` open with."""
    for at, sized_message in enumerate(messages):
        if sized_message.message.role != "system":
            return at
    return len(messages)


def _keep_logged_size(logged: SizedMessage, client_message: SizedMessage) -> SizedMessage:
    """Return ``client_message`` with the size and the digest that the log has in its place."""
    if client_message.raw is not None and (client_message.api, client_message.raw) == (logged.api, logged.raw):
        return logged
    size_and_digest = (logged.tokens, logged.digest)
    return (
        client_message
        if size_and_digest == (client_message.tokens, client_message.digest)
        else replace(client_message, tokens=logged.tokens, digest=logged.digest)
    )


def _collect_same_role_run(messages: Sequence[SizedMessage], at: int) -> list[SizedMessage]:
    """Return the slots from ``at`` on that one side said without a break."""
    role = messages[at].message.role
    stop = next((place for place in range(at, len(messages)) if messages[place].message.role != role), len(messages))
    return list(messages[at:stop])


def _is_same_message(logged: SizedMessage, client_message: SizedMessage, settings: Settings) -> bool:
    if client_message.digest == logged.digest or (client_message.raw is not None and client_message.raw == logged.raw):
        return True
    return is_equivalent_message(logged.message, client_message.message) or is_equivalent_message(
        logged.message, cap_message_texts(client_message.message, settings)[0]
    )
