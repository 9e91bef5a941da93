"""The projection made valid: repairs of what a branch shows, found again only for what is new."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Thinking
from holdfast.messages.size.image_size import is_oversized_image
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import can_contain_thinking, strip_foreign_content
from holdfast.normalize.ids import get_assistant_calls, is_wire_id, list_server_call_ids
from holdfast.normalize.normalize_history import DROPPED_THINKING_RULES, SINGLE_MESSAGE_RULES, normalize_history
from holdfast.normalize.pairing import CALL_ID_RULE, find_orphan_ids
from holdfast.normalize.signatures import SIGNATURE_RULE as SIGNED
from holdfast.normalize.tracked_messages import split_edit_rules
from holdfast.state.conversation_state import ConversationState
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, NormalizedPrefix
from holdfast.state.plan import Plan
from holdfast.state.view import (
    apply_normalization,
    build_projection,
    compute_leading_digest,
    count_leading_messages,
    list_shown_indexes,
    list_shown_messages_at,
    list_shown_sized_messages_at,
)

_GROUP_LOCAL_RULES = SINGLE_MESSAGE_RULES | {CALL_ID_RULE}
"""Rules of the edits that no later group changes: a call's id is that of its results, and of what stands before."""


def build_messages_to_send(plan: Plan) -> list[SizedMessage]:
    """Return the slots to send: the projection of the plan's branch with its repairs applied."""
    return apply_normalization(build_projection(plan.state), plan.normalization)


def normalize_projection(
    state: ConversationState, dialect: Dialect
) -> tuple[tuple[Edit, ...], NormalizedPrefix | None]:
    """Return the repairs of the projection, and how much of it is settled for the next time."""
    repair, prefix = _normalize_incrementally(state, dialect)
    if dialect.clients_drop_thinking and not DROPPED_THINKING_RULES.isdisjoint([edit.rule for edit in repair]):
        sized_messages = build_projection(state)
        repair = tuple(
            [
                edit
                for edit in repair
                if not (
                    edit.rule in DROPPED_THINKING_RULES and _is_thinking_already_absent(edit, sized_messages, dialect)
                )
            ]
        )
    return repair, prefix


def _is_thinking_already_absent(edit: Edit, sized_messages: Sequence[SizedMessage], dialect: Dialect) -> bool:
    """Return whether ``edit`` takes thinking, and that alone, out of bytes that have none: their client left it out."""
    sized_message, replacement = sized_messages[edit.span.start], edit.replacement[0]
    if sized_message.api != dialect.api or sized_message.raw is None or can_contain_thinking(sized_message.raw):
        return False
    other_parts = tuple([part for part in sized_message.message.parts if not isinstance(part, Thinking)])
    return replacement == Message(sized_message.message.role, other_parts)


def _normalize_incrementally(
    state: ConversationState, dialect: Dialect
) -> tuple[tuple[Edit, ...], NormalizedPrefix | None]:
    """Return all repairs, also of what is settled."""
    prefix = state.view.normalized_prefix
    if prefix is None or prefix.dialect != dialect or _can_exceed_media_limits(state, dialect):
        prefix = None
    if prefix is not None:
        sized_messages = _list_shown_sized_messages(state, prefix.next_index)
        messages = _convert_messages_to_api(sized_messages, dialect)
        stands = not find_orphan_ids(messages) and not _has_call_with_id(messages, prefix.orphan_result_ids)
        if stands and _has_unambiguous_reuse(_find_reused_ids(state, prefix, messages), messages):
            return _extend_settled_prefix(state, prefix, sized_messages, messages, 0)
    sized_messages = build_projection(state)
    return _extend_settled_prefix(
        state,
        NormalizedPrefix(dialect, state.view.first_kept, 0),
        sized_messages,
        _convert_messages_to_api(sized_messages, dialect),
        count_leading_messages(state),
    )


def _list_shown_sized_messages(state: ConversationState, start: int) -> list[SizedMessage]:
    """Return what the projection shows for the slots from ``start`` on."""
    if not state.view.edits:
        return state.history.sized_messages.slice(start)
    return [
        message for index in list_shown_indexes(state, start) for message in list_shown_sized_messages_at(state, index)
    ]


def _convert_messages_to_api(sized_messages: Sequence[SizedMessage], dialect: Dialect) -> list[Message]:
    """Return the messages of ``sized_messages`` as they will be written: of those of another API, what this one can
    say.
    """
    api = dialect.api
    return [
        sized_message.message
        if sized_message.api == api or not sized_message.api
        else _convert_message_to_api(sized_message.message, api)
        for sized_message in sized_messages
    ]


def _convert_message_to_api(message: Message, api: str) -> Message:
    """Return a message of another API; an answer without a part, which no API takes, when nothing of it is left."""
    native_message = strip_foreign_content(message, api)
    return native_message if native_message.parts else Message("assistant")


def _can_exceed_media_limits(state: ConversationState, dialect: Dialect) -> bool:
    """Whether there may be more media than the API takes: base64 makes four bytes of three."""
    if state.view.media_count > dialect.max_images or state.view.media_bytes * 2 > dialect.max_bytes:
        return True
    return state.view.media_count > dialect.max_images_with_large and _has_large_image(state, dialect)


def _has_large_image(state: ConversationState, dialect: Dialect) -> bool:
    """Return whether an image that is shown has more pixels on a side than many may have."""
    visible_messages = [*state.history.messages.slice(0, state.view.pinned_count)]
    visible_messages += [
        message for index in state.view.media_indexes for message in list_shown_messages_at(state, index)
    ]
    return any(
        medium.kind == "image" and is_oversized_image(medium, dialect.large_image_pixels)
        for medium in collect_media_in_messages(*visible_messages)
    )


def _has_call_with_id(messages: Sequence[Message], ids: frozenset[str]) -> bool:
    return bool(ids) and any(call.id in ids for message in messages for call in message.calls)


def _find_reused_ids(state: ConversationState, prefix: NormalizedPrefix, messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of calls in ``messages`` that a call in the settled prefix has too."""
    ids = {call.id for message in messages for call in get_assistant_calls(message)}
    return frozenset(
        [id_ for id_ in ids if state.history.first_index_by_call_id.get(id_, prefix.next_index) < prefix.next_index]
    )


def _has_unambiguous_reuse(ids: frozenset[str], messages: Sequence[Message]) -> bool:
    """Return whether the results of calls of ``ids``, which were used before, answer those in ``messages``.

    So it is where each stands behind the newest answer that calls it.
    """
    waiting: Counter[str] = Counter()
    for message in messages if ids else ():
        call_counts = Counter([call.id for call in get_assistant_calls(message)])
        waiting |= call_counts
        for result in message.results:
            waiting[result.call_id] -= 1
            if result.call_id in ids and waiting[result.call_id] < 0:
                return False
    return True


def _extend_settled_prefix(
    state: ConversationState,
    prefix: NormalizedPrefix,
    sized_messages: Sequence[SizedMessage],
    messages: Sequence[Message],
    leading_count: int,
) -> tuple[tuple[Edit, ...], NormalizedPrefix | None]:
    """Return all repairs, and the settled prefix grown up to the last place where it may end.

    ``messages`` are the ``sized_messages`` as they will be written; ``leading_count`` counts those at the front that
    are none of the kept tail.
    """
    summary = leading_count - 1 if leading_count > state.view.pinned_count else -1
    loose, interrupted = (
        frozenset(_find_invalid_thinking(state, prefix, leading_count)),
        frozenset(_find_interrupted_positions(state, prefix, leading_count)),
    )
    own = bool(sized_messages) and sized_messages[0].raw is not None and sized_messages[0].api == prefix.dialect.api
    apart = own and prefix.dialect.has_system_field
    fresh = normalize_history(
        messages,
        prefix.dialect,
        prefix.position,
        loose,
        interrupted,
        has_system_field=not apart,
        summary_position=summary,
        earlier_ids=prefix.sent_call_ids,
    )
    regular = len(messages) - leading_count == len(state.history.sized_messages) - prefix.next_index
    end = _find_last_independent_cut(messages, prefix.position, fresh) if regular else 0
    if end <= leading_count:
        return prefix.normalization + fresh, prefix if prefix.position else None
    edge = prefix.position + end
    prefix_edits = tuple(edit for edit in fresh if edit.span.start < edge)
    stray = prefix.orphan_result_ids | find_orphan_ids(messages[:end])
    ids = prefix.sent_call_ids | _collect_sent_ids(
        _apply_normalization_edits(messages[:end], prefix.position, prefix_edits), prefix.dialect
    )
    now = NormalizedPrefix(
        prefix.dialect, prefix.next_index + end - leading_count, edge, prefix.normalization + prefix_edits, stray, ids
    )
    return prefix.normalization + fresh, now


def _apply_normalization_edits(
    messages: Sequence[Message], first_position: int, edits: Sequence[Edit]
) -> Iterator[Message]:
    """Yield ``messages``, the first of which stands at ``first_position``, as ``edits`` make them."""
    cursor = 0
    for edit in edits:
        yield from messages[cursor : edit.span.start - first_position]
        yield from [message for message in edit.replacement if isinstance(message, Message)]
        cursor = edit.span.stop - first_position
    yield from messages[cursor:]


def _collect_sent_ids(messages: Iterable[Message], dialect: Dialect) -> frozenset[str]:
    """Return the ids of calls in ``messages`` that no later call may have."""
    if not dialect.unique_ids:
        return frozenset()
    every = (
        id_
        for message in messages
        for id_ in (*[call.id for call in get_assistant_calls(message)], *list_server_call_ids(message))
    )
    return frozenset([id_ for id_ in every if is_wire_id(id_, dialect)])


def _find_last_independent_cut(messages: Sequence[Message], position: int, edits: Sequence[Edit]) -> int:
    """Return the last place where nothing behind it depends on what stands before.

    That is where the agent answers a finished group, and no edit reaches over it; 0 is nowhere. Stand-ins for
    signatures go when the turn is over, so none of them is settled.
    """
    signature_start = min(
        (edit.span.start for edit in edits if SIGNED in split_edit_rules(edit)), default=position + len(messages)
    )
    spans = [edit.span for edit in edits if not _GROUP_LOCAL_RULES.issuperset(split_edit_rules(edit))]
    pending_results: Counter[str] = Counter()
    for index in range(len(messages) - 1, 0, -1):
        if messages[index].role != "assistant":
            pending_results.update([result.call_id for result in messages[index].results])
            continue
        if pending_results:
            pending_results -= Counter([call.id for call in messages[index].calls])
        edge = position + index
        starts = not pending_results and messages[index - 1].role != "assistant"
        if starts and edge <= signature_start and not any(span.start <= edge <= span.stop for span in spans):
            return index
    return 0


def _find_interrupted_positions(
    state: ConversationState, prefix: NormalizedPrefix, leading_count: int
) -> Iterator[int]:
    """Yield the positions of answers that failed or were interrupted."""
    if any(index >= prefix.next_index for index in state.history.failed_answer_indexes):
        yield from (
            position
            for position, index in _enumerate_unsettled(state, prefix, leading_count)
            if index in state.history.failed_answer_indexes
        )


def _enumerate_unsettled(
    state: ConversationState, prefix: NormalizedPrefix, leading_count: int
) -> Iterator[tuple[int, int]]:
    """Yield where what is not settled stands in the projection, and the slot that it stands for."""
    position = prefix.position + leading_count
    for index in list_shown_indexes(state, prefix.next_index):
        for _ in list_shown_messages_at(state, index) if index in state.view.edits else (None,):
            yield position, index
            position += 1


def _find_invalid_thinking(state: ConversationState, prefix: NormalizedPrefix, leading_count: int) -> Iterator[int]:
    """Yield the positions whose thinking was signed over another prefix than the one it has now.

    Nothing on models that do not bind it. What stood before an answer when it came is in ``born``, what stands there
    now in ``marks``; a frame that gave way to another unbinds as well, and so does a result that came late. What was
    said before there was any frame is taken to be signed over the first one: a conversation that began elsewhere goes
    out as it came.
    """
    messages = state.history.messages.slice(prefix.next_index) if prefix.dialect.binds_thinking else []
    thoughts = [at for at, message in enumerate(messages, prefix.next_index) if Thinking in map(type, message.parts)]
    early, thinking_indexes = (
        _find_thinking_before_late_results(messages, prefix.next_index, thoughts),
        frozenset(thoughts),
    )
    for position, index in _enumerate_unsettled(state, prefix, leading_count) if thoughts else ():
        if index in thinking_indexes:
            before = (
                state.history.projection_digests[index - 1]
                if index > state.view.first_kept
                else compute_leading_digest(state)
            )
            if index < state.setup_changed_at or index in early or state.history.digests_before[index] != before:
                yield position


def _find_thinking_before_late_results(
    messages: Sequence[Message], first: int, thinking_indexes: Sequence[int]
) -> set[int]:
    """Return those of ``thinking_indexes`` that stand between a call and its first result, which is shown before them.

    When they came a stand-in was shown there; answers that follow each other are one, and wait together. ``messages``
    are the messages from slot ``first`` on.
    """
    call_indexes: dict[str, int] = {}
    other_indexes: list[int] = []
    early: set[int] = set()
    for index, message in enumerate(messages if thinking_indexes else (), first):
        if message.role == "assistant":
            call_indexes |= dict.fromkeys([call.id for call in message.calls], index)
            continue
        other_indexes.append(index)
        for result in message.results:
            start = call_indexes.pop(result.call_id, None)
            if start is not None:
                behind = other_indexes[bisect_right(other_indexes, start)]
                early.update(
                    thinking_indexes[bisect_right(thinking_indexes, behind) : bisect_left(thinking_indexes, index)]
                )
    return early
