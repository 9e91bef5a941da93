"""The projection: what a request shows of a conversation, with the recorded decisions applied, and digests of it.

Two projections with equal digests are equal byte for byte, so their prefix is in the provider's cache and a size that
was measured for one holds for the other. Digests are chained message by message; appending to a history never
recomputes those before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Part
from holdfast.messages.sized_message import EMPTY_HASHER, SizedMessage
from holdfast.state.calibration.calibration import LastAnswerUsage, MeasuredRequest
from holdfast.state.codec.packing import pack_value
from holdfast.state.codec.reading import get_decoder
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.entries import CompactionEntry

ROOT_DIGEST = b"holdfast"
"""Start of the digest chain, before the first message."""


# -- what is shown -----------------------------------------------------------------------------------------------------


def list_shown_sized_messages_at(state: ConversationState, index: int) -> tuple[SizedMessage, ...]:
    """Return the messages shown for message ``index``: itself, itself with parts replaced, or others.

    The size of other messages is 0, since the savings of edits are subtracted from the whole.
    """
    sized_message = state.history.sized_messages[index]
    edits = state.view.edits.get(index)
    if edits is None:
        return (sized_message,)
    for edit in edits:
        if edit.span.part is None:
            shown_messages: list[SizedMessage] = []
            for replacement in edit.replacement:
                if isinstance(replacement, Message):
                    shown_messages.append(SizedMessage(replacement, 0, compute_value_digest(replacement)))
            return tuple(shown_messages)
    return (apply_part_edits(sized_message, edits),)


def list_shown_messages_at(state: ConversationState, index: int) -> tuple[Message, ...]:
    """Return the messages of ``list_shown_sized_messages_at`` without computing sizes and digests."""
    message = state.history.messages[index]
    edits = state.view.edits.get(index)
    if edits is None:
        return (message,)
    for edit in edits:
        if edit.span.part is None:
            return tuple(replacement for replacement in edit.replacement if isinstance(replacement, Message))
    return (Message(message.role, apply_edits_to_parts(message, edits)),)


def apply_part_edits(sized_message: SizedMessage, edits: Iterable[Edit]) -> SizedMessage:
    """Return ``sized_message`` with the parts replaced that ``edits`` name; its other parts keep their wire bytes."""
    all_edits = list(edits)
    message = Message(sized_message.message.role, apply_edits_to_parts(sized_message.message, all_edits))
    saved_tokens = sum(edit.saves for edit in all_edits if edit.span.part is not None)
    return SizedMessage(
        message,
        sized_message.tokens - saved_tokens,
        compute_value_digest(message),
        sized_message.api,
        None,
        sized_message.raw or sized_message.base_raw,
    )


def apply_edits_to_parts(message: Message, edits: Iterable[Edit]) -> tuple[Part, ...]:
    """Return the parts of ``message`` with ``edits`` applied; the later of two edits of one part wins."""
    parts = list(message.parts)
    # From the back, since a replacement may have more parts or fewer and would shift the positions after it.
    for edit in sorted(edits, key=lambda edit: edit.span.part or 0, reverse=True):
        if edit.span.part is not None:
            parts[edit.span.part : edit.span.part + 1] = edit.replacement  # type: ignore[assignment]
    return tuple(parts)


def build_projection(state: ConversationState) -> list[SizedMessage]:
    """Build the message list of a request: pinned messages, the summary, and the kept messages with edits applied.

    It is not yet normalized for an API.
    """
    shown = state.history.sized_messages.slice(0, state.view.pinned_count)
    if state.view.compaction is not None and state.view.compaction.summary is not None:
        shown.append(build_summary_message(state.view.compaction, state.last_request.model, state.last_request.api))
    shown += list_restated_messages(state)
    # Without edits the tail is copied at once, which is much faster than message by message.
    if not state.view.edits:
        shown += state.history.sized_messages.slice(state.view.first_kept)
        return shown
    index, stop = state.view.first_kept, len(state.history.sized_messages)
    while index < stop:
        shown += list_shown_sized_messages_at(state, index)
        index = get_next_shown_index(state, index)
    return shown


def list_restated_messages(state: ConversationState) -> list[SizedMessage]:
    """Return the hidden messages that are shown again after the summary, byte for byte."""
    if state.view.compaction is None:
        return []
    return [state.history.sized_messages[index] for index in _list_restated_indexes(state)]


def _list_restated_indexes(state: ConversationState) -> list[int]:
    if state.view.compaction is None:
        return []
    # A log may have lost messages that it hides.
    message_count = len(state.history.sized_messages)
    return [index for index in state.view.compaction.restated if index < message_count]


# -- the summary -------------------------------------------------------------------------------------------------------


class NativeSummary(Struct, frozen=True):
    """The compaction items that a provider made itself; only ``model`` on ``api`` can read them."""

    api: str = ""
    model: str = ""
    items: list[Raw] = []
    tokens: int = 0
    """Their size as the provider counted it; 0 if it did not."""


def decode_native_summary(compaction: CompactionEntry) -> NativeSummary | None:
    """Return the provider's compaction items, or None without any or if they cannot be decoded."""
    if compaction.native is None:
        return None
    try:
        native = get_decoder(NativeSummary).decode(compaction.native)
    except msgspec.MsgspecError:
        return None
    return native if native.items else None


def build_summary_message(compaction: CompactionEntry, model: str = "", api: str = "") -> SizedMessage:
    """Build the message that stands for the compacted head in a request to ``model`` on ``api``.

    The provider's own items are sent byte for byte to the API and model that made them; any other one gets the readable
    summary, which ``compaction`` must have. An empty ``model`` or ``api`` matches any.
    """
    summary = compaction.summary or Message("user")
    native = _get_readable_native(compaction, model, api)
    if native is None:
        return SizedMessage(
            summary,
            _measure_readable_summary(compaction),
            _hash_summary(compaction),
        )
    raw = Raw(b",".join(bytes(item) for item in native.items))
    return SizedMessage(
        summary,
        compaction.head_tokens,
        _hash_summary(compaction),
        native.api,
        raw,
    )


def measure_native_summary(compaction: CompactionEntry | None, model: str, api: str) -> int:
    """Return the size of the summary if a provider compacted, else 0.

    Only such a summary has different sizes for different targets, so ``ViewState.native_tokens`` tracks it apart.
    """
    if compaction is None or compaction.native is None:
        return 0
    return measure_summary(compaction, model, api)


def measure_summary(compaction: CompactionEntry, model: str = "", api: str = "") -> int:
    """Return the estimated tokens of the message that ``build_summary_message`` builds."""
    if _get_readable_native(compaction, model, api) is not None:
        return compaction.head_tokens
    return _measure_readable_summary(compaction)


def get_shown_tokens(state: ConversationState, model: str, api: str) -> int:
    """Return the estimated tokens of the projection for ``model`` on ``api``.

    ``state.view.shown_tokens`` is the same for the model of the last request.
    """
    return state.view.shown_tokens + get_native_tokens(state, model, api) - state.view.native_tokens


def get_native_tokens(state: ConversationState, model: str, api: str) -> int:
    """Return ``state.view.native_tokens`` for ``model`` on ``api`` in place of the model of the last request."""
    is_last_target = (model, api) == (state.last_request.model, state.last_request.api)
    if state.view.compaction is None or is_last_target:
        return state.view.native_tokens
    return measure_native_summary(state.view.compaction, model, api)


def _get_readable_native(compaction: CompactionEntry, model: str, api: str) -> NativeSummary | None:
    """Return the provider's compaction items if ``model`` on ``api`` can read them, else None."""
    native = decode_native_summary(compaction)
    if native is None:
        return None
    is_other_model = bool(model and native.model and model != native.model)
    is_other_api = bool(api and api != native.api)
    return None if is_other_model or is_other_api else native


CHARS_PER_READABLE_TOKEN = 4
"""Characters for a token of a readable summary whose size nobody recorded, as in logs of older versions.

The usual rule of thumb for English; the summary is only shown after a change of provider.
"""


def _measure_readable_summary(compaction: CompactionEntry) -> int:
    """Return the estimated tokens of the readable summary."""
    is_counted = compaction.native is None or compaction.readable_tokens > 0
    if is_counted or compaction.summary is None:
        return compaction.readable_tokens or compaction.head_tokens
    return max(compaction.head_tokens, len(compaction.summary.text) // CHARS_PER_READABLE_TOKEN)


_newest_digest: tuple[CompactionEntry, bytes] | None = None
"""The compaction that was hashed last, and its digest.

Every entry after a compaction asks for the digest again, and packing a long summary each time took a fifth of the time
that folding a long log takes.
"""


def _hash_summary(compaction: CompactionEntry) -> bytes:
    """Return the digest of the summary: of its readable text and of the provider's items, if any."""
    global _newest_digest  # noqa: PLW0603 -- of an immutable value, so nobody sees a difference
    cached_digest = _newest_digest
    if cached_digest is not None and cached_digest[0] is compaction:
        return cached_digest[1]
    if compaction.native is None or compaction.summary is None:
        digest = compute_value_digest(compaction.summary or compaction)
    else:
        digest = compute_value_digest(CompactionEntry(0, compaction.summary, native=compaction.native))
    _newest_digest = compaction, digest
    return digest


def count_leading_messages(state: ConversationState) -> int:
    """Return how many messages a request shows before the first kept one: the pinned ones, the summary, and
    those that are shown again after it.
    """
    count = state.view.pinned_count
    compaction = state.view.compaction
    if compaction is not None and compaction.summary is not None:
        count += 1
    return count + len(_list_restated_indexes(state))


# -- normalization -----------------------------------------------------------------------------------------------------


def apply_normalization(sized_messages: list[SizedMessage], repairs: Iterable[Edit]) -> list[SizedMessage]:
    """Return a projection with ``repairs`` applied, in order; their spans count positions in ``sized_messages``.

    The first message in place of a span takes the span's whole size, so that the total is unchanged.
    """
    normalized: list[SizedMessage] = []
    cursor = 0
    for edit in repairs:
        normalized += sized_messages[cursor : edit.span.start]
        old = sized_messages[edit.span.start : edit.span.stop]
        # One message for one: fields of the old wire message that no repair touched are carried over.
        base = None
        if len(old) == len(edit.replacement) == 1:
            base = old[0].raw or old[0].base_raw
        api = old[0].api if old else ""
        tokens = sum(sized_message.tokens for sized_message in old)
        for message in edit.replacement:
            if isinstance(message, Message):
                normalized.append(
                    SizedMessage(
                        message,
                        tokens,
                        compute_value_digest(message),
                        api,
                        None,
                        base,
                    )
                )
                tokens = 0
        cursor = edit.span.stop
    return normalized + sized_messages[cursor:]


def map_normalized_position(position: int, repairs: Iterable[Edit]) -> int:
    """Return where ``position`` of a projection is once ``repairs`` are applied.

    A position inside a replaced span maps to the last message in its place.
    """
    shift = 0
    for edit in repairs:
        if edit.span.start > position:
            break
        if edit.span.stop > position:
            return max(0, edit.span.start + shift + len(edit.replacement) - 1)
        shift += len(edit.replacement) - (edit.span.stop - edit.span.start)
    return position + shift


def list_projection_origins(state: ConversationState) -> list[int]:
    """Return, for each message of ``build_projection(state)``, the index in the history it came from; -1 = summary."""
    pinned_count = state.view.pinned_count
    restated_indexes = _list_restated_indexes(state)
    summary_count = count_leading_messages(state) - pinned_count - len(restated_indexes)
    origins = [*range(pinned_count), *[-1] * summary_count, *restated_indexes]
    index, stop = state.view.first_kept, len(state.history.sized_messages)
    while index < stop:
        origins += [index] * len(list_shown_sized_messages_at(state, index))
        index = get_next_shown_index(state, index)
    return origins


# -- digests -----------------------------------------------------------------------------------------------------------


def compute_prefix_digest(state: ConversationState) -> str:
    """Return the digest of the setup and the whole projection; requests with equal ones have equal prefixes."""
    return compute_prefix_digest_at(state, len(state.history.sized_messages))


def compute_prefix_digest_at(state: ConversationState, count: int) -> str:
    """Return the digest of the setup and the projection of the first ``count`` messages."""
    return blake2b(state.setup.digest.encode() + get_projection_digest_at(state, count), digest_size=16).hexdigest()


def get_projection_digest_at(state: ConversationState, count: int) -> bytes:
    """Return the digest of the projection of the first ``count`` messages; empty if there are fewer."""
    if count > len(state.history.sized_messages):
        return b""
    if count > state.view.first_kept:
        return state.history.projection_digests[count - 1]
    return compute_leading_digest(state)


def chain_digest(before: bytes, digest: bytes) -> bytes:
    """Return the digest of everything that ``before`` covers and one message more."""
    hasher = EMPTY_HASHER.copy()
    hasher.update(before + digest)
    return hasher.digest()


def compute_value_digest(message: Struct) -> bytes:
    """Return the digest of a value's content."""
    return blake2b(pack_value(message), digest_size=16).digest()


def compute_leading_digest(state: ConversationState) -> bytes:
    """Return the digest of everything shown before the first kept message: pinned messages and the summary."""
    digest = ROOT_DIGEST
    if state.view.pinned_count:
        digest = state.history.projection_digests[state.view.pinned_count - 1]
    if state.view.compaction is None:
        return digest
    digest = chain_digest(digest, _hash_summary(state.view.compaction))
    for sized_message in list_restated_messages(state):
        digest = chain_digest(digest, sized_message.digest)
    return digest


# -- positions ---------------------------------------------------------------------------------------------------------


def list_shown_indexes(state: ConversationState, start: int) -> Sequence[int]:
    """Return the indexes from ``start`` on for which a request shows something.

    Left out are messages that an edit of several messages covers, except the one it starts at.
    """
    covered_indexes: set[int] = set()
    for index, edits in state.view.edits.iter_from(state.view.first_kept):
        if any(edit.span.part is None for edit in edits):
            covered_indexes.update(range(index + 1, get_next_shown_index(state, index)))
    indexes = range(start, len(state.history.sized_messages))
    if not covered_indexes:
        return indexes
    return [index for index in indexes if index not in covered_indexes]


def get_next_shown_index(state: ConversationState, index: int) -> int:
    """Return the index of the message shown after ``index``, past all that an edit at ``index`` covers."""
    for edit in state.view.edits.get(index, ()):
        if edit.span.part is None:
            return edit.span.end
    return index + 1


# -- measurements that still hold --------------------------------------------------------------------------------------


def get_valid_measured_request(state: ConversationState) -> MeasuredRequest | None:
    """Return the measured request, or None if its content is no longer shown the same.

    It becomes valid again when the decision that changed it is undone.
    """
    measurement = state.usage.measured_request
    if measurement is None or not measurement.projection_digest:
        return None
    if measurement.native_tokens != state.view.native_tokens:
        return None
    is_unchanged = measurement.projection_digest == get_projection_digest_at(state, measurement.message_count)
    return measurement if is_unchanged else None


def get_valid_last_answer(state: ConversationState) -> LastAnswerUsage | None:
    """Return the usage of the newest good answer, or None if it was given under another summary."""
    answer = state.usage.last_answer
    if answer is None or answer.base_digest != compute_leading_digest(state):
        return None
    return answer
