"""Normalize the projection of a state incrementally: only messages that are new since the last time are looked at.

A long session sends its history hundreds of times. The *settled prefix* is the part whose edits can no longer change,
whatever comes after it; it is kept in the state with its edits and the few facts about it that later messages need.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Thinking
from holdfast.messages.size.image_size import is_oversized_image
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import can_contain_thinking, strip_foreign_content
from holdfast.normalize.ids import get_assistant_calls, is_wire_id, list_server_call_ids
from holdfast.normalize.normalize_history import DROPPED_THINKING_RULES, SINGLE_MESSAGE_RULES, normalize_history
from holdfast.normalize.pairing import CALL_ID_RULE
from holdfast.normalize.result_matching import find_orphan_ids
from holdfast.normalize.returned_reasoning import REASONING_RULE
from holdfast.normalize.signatures import SIGNATURE_RULE
from holdfast.normalize.tracked_messages import split_edit_rules
from holdfast.state.conversation_state import ConversationState
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, NormalizedPrefix, Span
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

_RESTORED_REASONING = "the client left out the reasoning that the server wants back; it is sent as the model gave it"
# Rules of the edits that later messages never change: an id depends on its message and on what stands before.
_LASTING_RULES = SINGLE_MESSAGE_RULES | {CALL_ID_RULE}


def build_messages_to_send(plan: Plan) -> list[SizedMessage]:
    """Return the messages to send: the projection of the plan's state with the plan's normalization applied."""
    return apply_normalization(build_projection(plan.state), plan.normalization)


def normalize_projection(
    state: ConversationState, dialect: Dialect
) -> tuple[tuple[Edit, ...], NormalizedPrefix | None]:
    """Return the edits that make the projection valid, and the settled prefix for the next time (None if empty)."""
    edits, prefix = _normalize_incrementally(state, dialect)
    if dialect.clients_drop_thinking and not DROPPED_THINKING_RULES.isdisjoint([edit.rule for edit in edits]):
        sized_messages = build_projection(state)
        needed_edits: list[Edit] = []
        for edit in edits:
            drops_thinking = edit.rule in DROPPED_THINKING_RULES
            if not (drops_thinking and _is_thinking_already_absent(edit, sized_messages, dialect)):
                needed_edits.append(edit)
        edits = tuple(needed_edits)
    if dialect.reasoning_scope:
        edits = _restore_dropped_reasoning(build_projection(state), edits, dialect)
    return edits, prefix


def _restore_dropped_reasoning(
    sized_messages: Sequence[SizedMessage], edits: tuple[Edit, ...], dialect: Dialect
) -> tuple[Edit, ...]:
    """Return ``edits`` with one for each answer whose client left out the reasoning that the server wants back.

    The log has the reasoning, but the client's bytes, which would be sent, have not.
    """
    lacking_positions: set[int] = set()
    for position, sized_message in enumerate(sized_messages):
        if _lacks_required_reasoning(sized_message, dialect):
            lacking_positions.add(position)
    if not lacking_positions:
        return edits
    new_edits: list[Edit] = []
    for edit in edits:
        edited_positions = lacking_positions.intersection(range(edit.span.start, edit.span.stop))
        if edited_positions:
            lacking_positions -= edited_positions
            replacement = [
                _write_reasoning_anew(part) if isinstance(part, Message) else part for part in edit.replacement
            ]
            edit = replace(edit, replacement=tuple(replacement))  # noqa: PLW2901
        new_edits.append(edit)
    for position in lacking_positions:
        message = _write_reasoning_anew(sized_messages[position].message)
        new_edits.append(Edit(Span(position, position + 1), (message,), REASONING_RULE, _RESTORED_REASONING))
    return tuple(sorted(new_edits, key=lambda edit: (edit.span.start, edit.span.stop)))


def _write_reasoning_anew(message: Message) -> Message:
    """Return ``message`` with reasoning that is written although the client's own message has none.

    What came over the wire, and has bytes, is left out where the client leaves it out.
    """
    parts = [replace(part, raw=None) if isinstance(part, Thinking) else part for part in message.parts]
    return Message(message.role, tuple(parts))


def _lacks_required_reasoning(sized_message: SizedMessage, dialect: Dialect) -> bool:
    """Return whether an answer has reasoning that must come back, but not in its bytes."""
    message = sized_message.message
    if message.role != "assistant" or sized_message.raw is None or sized_message.api != dialect.api:
        return False
    if dialect.reasoning_scope == "calls" and not message.calls:
        return False
    if not any(isinstance(part, Thinking) for part in message.parts):
        return False
    raw = bytes(sized_message.raw)
    return not any(b'"%s"' % field.encode() in raw for field in dialect.reasoning_fields or ())


def _is_thinking_already_absent(edit: Edit, sized_messages: Sequence[SizedMessage], dialect: Dialect) -> bool:
    """Return whether ``edit`` only drops thinking which the client's own bytes do not hold.

    Such an edit changes nothing that is sent, but would cost the message its bytes.
    """
    sized_message = sized_messages[edit.span.start]
    if sized_message.api != dialect.api or sized_message.raw is None:
        return False
    if can_contain_thinking(sized_message.raw):
        return False
    message = sized_message.message
    other_parts = tuple([part for part in message.parts if not isinstance(part, Thinking)])
    return edit.replacement[0] == Message(message.role, other_parts)


def _normalize_incrementally(
    state: ConversationState, dialect: Dialect
) -> tuple[tuple[Edit, ...], NormalizedPrefix | None]:
    """Return all edits, those of the settled prefix included, and the settled prefix for the next time."""
    prefix = state.view.normalized_prefix
    if prefix is not None and prefix.dialect == dialect and not _can_exceed_media_limits(state, dialect):
        sized_messages = _list_shown_sized_messages(state, prefix.next_index)
        messages = _convert_messages_to_api(sized_messages, dialect)
        if _can_extend_prefix(state, prefix, messages):
            return _extend_settled_prefix(state, prefix, sized_messages, messages, 0)
    sized_messages = build_projection(state)
    messages = _convert_messages_to_api(sized_messages, dialect)
    empty_prefix = NormalizedPrefix(dialect, state.view.first_kept, 0)
    return _extend_settled_prefix(
        state,
        empty_prefix,
        sized_messages,
        messages,
        count_leading_messages(state),
    )


def _can_extend_prefix(state: ConversationState, prefix: NormalizedPrefix, messages: Sequence[Message]) -> bool:
    """Return whether the edits of the settled prefix stay valid with the new ``messages`` after it.

    They do not if the end of the prefix separates a call from its result, or two uses of an id whose results could be
    confused.
    """
    if find_orphan_ids(messages) or _has_call_with_id(messages, prefix.orphan_result_ids):
        return False
    return _has_unambiguous_reuse(_find_reused_ids(state, prefix, messages), messages)


def _list_shown_sized_messages(state: ConversationState, start: int) -> list[SizedMessage]:
    """Return the messages that the projection shows from index ``start`` on."""
    if not state.view.edits:
        return state.history.sized_messages.slice(start)
    shown_messages: list[SizedMessage] = []
    for index in list_shown_indexes(state, start):
        shown_messages += list_shown_sized_messages_at(state, index)
    return shown_messages


def _convert_messages_to_api(sized_messages: Sequence[SizedMessage], dialect: Dialect) -> list[Message]:
    """Return the messages as they will be written: those of another API reduced to the parts that this one has."""
    api = dialect.api
    messages: list[Message] = []
    for sized_message in sized_messages:
        is_foreign = sized_message.api and sized_message.api != api
        message = sized_message.message
        if is_foreign:
            messages.append(_convert_message_to_api(message, api))
        else:
            messages.append(message)
    return messages


def _convert_message_to_api(message: Message, api: str) -> Message:
    """Reduce another API's message to the parts that ``api`` has.

    A message without such parts becomes an empty answer. No API takes one, so the passes will drop it.
    """
    native_message = strip_foreign_content(message, api)
    return native_message if native_message.parts else Message("assistant")


def _can_exceed_media_limits(state: ConversationState, dialect: Dialect) -> bool:
    """Return whether the projection may hold more media than the API takes.

    Then the oldest are replaced, and those stand in the settled prefix.
    """
    # Twice the bytes is a safe bound: base64 makes four of three.
    if state.view.media_count > dialect.max_images or state.view.media_bytes * 2 > dialect.max_bytes:
        return True
    return state.view.media_count > dialect.max_images_with_large and _has_large_image(state, dialect)


def _has_large_image(state: ConversationState, dialect: Dialect) -> bool:
    """Return whether a shown image exceeds the size up to which the API takes many."""
    shown_messages = list(state.history.messages.slice(0, state.view.pinned_count))
    for index in state.view.media_indexes:
        shown_messages += list_shown_messages_at(state, index)
    return any(
        attachment.kind == "image" and is_oversized_image(attachment, dialect.large_image_pixels)
        for attachment in collect_media_in_messages(*shown_messages)
    )


def _has_call_with_id(messages: Sequence[Message], ids: frozenset[str]) -> bool:
    return bool(ids) and any(call.id in ids for message in messages for call in message.calls)


def _find_reused_ids(state: ConversationState, prefix: NormalizedPrefix, messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of calls in ``messages`` that calls in the settled prefix have too."""
    ids = {call.id for message in messages for call in get_assistant_calls(message)}
    first_indexes = state.history.first_index_by_call_id
    reused_ids: set[str] = set()
    for id_ in ids:
        if first_indexes.get(id_, prefix.next_index) < prefix.next_index:
            reused_ids.add(id_)
    return frozenset(reused_ids)


def _has_unambiguous_reuse(ids: frozenset[str], messages: Sequence[Message]) -> bool:
    """Return whether results of ``ids``, which calls in the settled prefix have too, answer calls in ``messages``.

    They do if each stands after a call of its id that is not answered yet; else it may belong to an earlier call.
    """
    if not ids:
        return True
    open_counts: Counter[str] = Counter()
    for message in messages:
        open_counts |= Counter([call.id for call in get_assistant_calls(message)])
        for result in message.results:
            open_counts[result.call_id] -= 1
            if result.call_id in ids and open_counts[result.call_id] < 0:
                return False
    return True


def _extend_settled_prefix(
    state: ConversationState,
    prefix: NormalizedPrefix,
    sized_messages: Sequence[SizedMessage],
    messages: Sequence[Message],
    leading_count: int,
) -> tuple[tuple[Edit, ...], NormalizedPrefix | None]:
    """Normalize the messages after ``prefix``; return all edits and the prefix extended as far as possible.

    ``messages`` are the ``sized_messages`` as they will be written. The first ``leading_count`` of them stand before
    the kept tail (pinned messages, summary).
    """
    compaction = state.view.compaction
    if leading_count and compaction is not None and compaction.summary is not None:
        summary_position = state.view.pinned_count
    else:
        summary_position = -1
    # Messages in the bytes of an API with a system field hold no leading system messages that could go there.
    is_body = bool(sized_messages) and sized_messages[0].raw is not None
    is_own_body = is_body and sized_messages[0].api == prefix.dialect.api
    new_edits = normalize_history(
        messages,
        prefix.dialect,
        prefix.position,
        frozenset(_find_invalid_thinking(state, prefix, leading_count)),
        frozenset(_find_interrupted_positions(state, prefix, leading_count)),
        has_system_field=not (is_own_body and prefix.dialect.has_system_field),
        summary_position=summary_position,
        earlier_ids=prefix.sent_call_ids,
    )
    all_edits = prefix.normalization + new_edits
    # Positions translate into indexes of the history only while each shown message is one message of the history.
    kept_count = len(messages) - leading_count
    is_one_to_one = kept_count == len(state.history.sized_messages) - prefix.next_index
    if is_one_to_one:
        cut = _find_last_independent_cut(messages, prefix.position, new_edits)
    else:
        cut = 0
    if cut <= leading_count:
        return all_edits, prefix if prefix.position else None
    cut_position = prefix.position + cut
    settled_edits = tuple(edit for edit in new_edits if edit.span.start < cut_position)
    settled_messages = _apply_normalization_edits(messages[:cut], prefix.position, settled_edits)
    extended_prefix = NormalizedPrefix(
        prefix.dialect,
        prefix.next_index + cut - leading_count,
        cut_position,
        prefix.normalization + settled_edits,
        prefix.orphan_result_ids | find_orphan_ids(messages[:cut]),
        prefix.sent_call_ids | _collect_sent_ids(settled_messages, prefix.dialect),
    )
    return all_edits, extended_prefix


def _apply_normalization_edits(
    messages: Sequence[Message], first_position: int, edits: Sequence[Edit]
) -> Iterator[Message]:
    """Yield ``messages`` with ``edits`` applied; the first message is at ``first_position``."""
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
    ids: set[str] = set()
    for message in messages:
        ids.update(call.id for call in get_assistant_calls(message))
        ids.update(list_server_call_ids(message))
    return frozenset([id_ for id_ in ids if is_wire_id(id_, dialect)])


def _find_last_independent_cut(messages: Sequence[Message], position: int, edits: Sequence[Edit]) -> int:
    """Return the last index in ``messages`` such that messages from it on change no edit before it, or 0.

    That is where an answer begins after a finished group of calls and results, and no edit reaches across. No result
    before the cut may have its only call after it: normalization moves such a result, and if a stage hides the call
    later, the result has to be looked at again.
    """
    # Dummy signatures are of the current turn and go when it is over, so nothing from the first one on is settled.
    signature_start = position + len(messages)
    changing_spans: list[Span] = []
    for edit in edits:
        rules = split_edit_rules(edit)
        if SIGNATURE_RULE in rules:
            signature_start = min(signature_start, edit.span.start)
        if not _LASTING_RULES.issuperset(rules):
            changing_spans.append(edit.span)
    early_results = _find_results_before_calls(messages)
    # Backwards, counting results whose calls have not been passed yet: a cut must have none after it.
    pending_results: Counter[str] = Counter()
    for index in range(len(messages) - 1, 0, -1):
        message = messages[index]
        if message.role != "assistant":
            pending_results.update([result.call_id for result in message.results])
            continue
        if pending_results:
            pending_results -= Counter([call.id for call in message.calls])
        starts_group = not pending_results and messages[index - 1].role != "assistant"
        cut_position = position + index
        if not starts_group or cut_position > signature_start:
            continue
        if any(result_index < index <= call_index for result_index, call_index in early_results):
            continue
        if not any(span.start <= cut_position <= span.stop for span in changing_spans):
            return index
    return 0


def _find_results_before_calls(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Return the indexes of results that come before the first call of their id, each with the index of that call."""
    early_results: list[tuple[int, int]] = []
    waiting_results: dict[str, int] = {}
    seen_ids: set[str] = set()
    for index, message in enumerate(messages):
        for call in get_assistant_calls(message):
            seen_ids.add(call.id)
            if call.id in waiting_results:
                early_results.append((waiting_results.pop(call.id), index))
        for result in message.results:
            if result.call_id not in seen_ids:
                waiting_results.setdefault(result.call_id, index)
    return early_results


def _find_interrupted_positions(
    state: ConversationState, prefix: NormalizedPrefix, leading_count: int
) -> Iterator[int]:
    """Yield the positions of answers that failed or were interrupted."""
    failed_indexes = state.history.failed_answer_indexes
    if not any(index >= prefix.next_index for index in failed_indexes):
        return
    for position, index in _enumerate_unsettled(state, prefix, leading_count):
        if index in failed_indexes:
            yield position


def _enumerate_unsettled(
    state: ConversationState, prefix: NormalizedPrefix, leading_count: int
) -> Iterator[tuple[int, int]]:
    """Yield position and history index of each message that the projection shows after the settled prefix."""
    position = prefix.position + leading_count
    for index in list_shown_indexes(state, prefix.next_index):
        # Only an edit can make one message of the history several, or none.
        if index in state.view.edits:
            shown_count = len(list_shown_messages_at(state, index))
        else:
            shown_count = 1
        for _ in range(shown_count):
            yield position, index
            position += 1


def find_invalid_thinking(state: ConversationState, dialect: Dialect) -> frozenset[int]:
    """Return the positions in ``build_projection(state)`` of thinking that its provider would refuse there.

    It was signed over other messages than stand before it now. For requests that somebody else sends; ours are
    normalized, which drops it.
    """
    whole = NormalizedPrefix(dialect, state.view.first_kept, 0)
    return frozenset(_find_invalid_thinking(state, whole, count_leading_messages(state)))


def _find_invalid_thinking(state: ConversationState, prefix: NormalizedPrefix, leading_count: int) -> Iterator[int]:
    """Yield the positions of thinking that was signed over other messages than stand before it now.

    Only models that bind thinking to its prefix mind. The digest of the messages before it when it was appended is
    compared with the digest of those shown there now. A change of the setup invalidates earlier thinking as well, and
    so does a result that came late. Messages from before the first setup count as signed over it: a conversation that
    began elsewhere is sent unchanged.
    """
    if not prefix.dialect.binds_thinking:
        return
    messages = state.history.messages.slice(prefix.next_index)
    thinking_indexes: list[int] = []
    for index, message in enumerate(messages, prefix.next_index):
        if Thinking in map(type, message.parts):
            thinking_indexes.append(index)
    if not thinking_indexes:
        return
    before_late_results = _find_thinking_before_late_results(messages, prefix.next_index, thinking_indexes)
    indexes_with_thinking = frozenset(thinking_indexes)
    for position, index in _enumerate_unsettled(state, prefix, leading_count):
        if index not in indexes_with_thinking:
            continue
        if index > state.view.first_kept:
            digest_now = state.history.projection_digests[index - 1]
        else:
            digest_now = compute_leading_digest(state)
        is_prefix_changed = index < state.setup_changed_at or state.history.digests_before[index] != digest_now
        if is_prefix_changed or index in before_late_results:
            yield position


def _find_thinking_before_late_results(
    messages: Sequence[Message], first: int, thinking_indexes: Sequence[int]
) -> set[int]:
    """Return those of ``thinking_indexes`` that stand between a call and the first result of it.

    When that thinking was signed, a synthetic result stood before it, where now the real one does. Adjacent answers are
    one and wait for their results together. ``messages`` are the history from index ``first`` on.
    """
    call_indexes: dict[str, int] = {}
    other_indexes: list[int] = []  # messages that are not answers
    early: set[int] = set()
    for index, message in enumerate(messages, first):
        if message.role == "assistant":
            call_indexes |= dict.fromkeys([call.id for call in message.calls], index)
            continue
        other_indexes.append(index)
        for result in message.results:
            call_index = call_indexes.pop(result.call_id, None)
            if call_index is None:
                continue
            # The answer's run ends at the first other message after the call; thinking in the run itself was before
            # it.
            run_end = other_indexes[bisect_right(other_indexes, call_index)]
            start = bisect_right(thinking_indexes, run_end)
            stop = bisect_left(thinking_indexes, index)
            early.update(thinking_indexes[start:stop])
    return early
