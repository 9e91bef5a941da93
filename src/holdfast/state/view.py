"""What a request shows of a branch: its slots with the decisions in force applied, and the digest of that."""

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
"""What stands before the first message, for the chain of digests."""


def list_shown_sized_messages_at(state: ConversationState, index: int) -> tuple[SizedMessage, ...]:
    """Return what stands in the projection for slot ``index``: itself, edited, or others in its place."""
    sized_message = state.history.sized_messages[index]
    edits = state.view.edits.get(index)
    if edits is None:
        return (sized_message,)
    for edit in edits:
        if edit.span.part is None:
            return tuple(
                SizedMessage(replacement, 0, compute_value_digest(replacement))
                for replacement in edit.replacement
                if isinstance(replacement, Message)
            )
    return (apply_part_edits(sized_message, edits),)


def list_shown_messages_at(state: ConversationState, index: int) -> tuple[Message, ...]:
    """Return the messages of ``list_shown_sized_messages_at``, without their sizes and digests."""
    message, edits = state.history.messages[index], state.view.edits.get(index)
    if edits is None:
        return (message,)
    for edit in edits:
        if edit.span.part is None:
            return tuple(replacement for replacement in edit.replacement if isinstance(replacement, Message))
    return (Message(message.role, apply_edits_to_parts(message, edits)),)


def apply_part_edits(sized_message: SizedMessage, edits: Iterable[Edit]) -> SizedMessage:
    """Return ``sized_message`` with parts replaced; its other parts keep their own bytes."""
    every = list(edits)
    message = Message(sized_message.message.role, apply_edits_to_parts(sized_message.message, every))
    saves = sum(edit.saves for edit in every if edit.span.part is not None)
    return SizedMessage(
        message,
        sized_message.tokens - saves,
        compute_value_digest(message),
        sized_message.api,
        None,
        sized_message.raw or sized_message.base_raw,
    )


def apply_edits_to_parts(message: Message, edits: Iterable[Edit]) -> tuple[Part, ...]:
    """Return the parts of ``message`` with those replaced that an edit stands for; of two for one part, the later."""
    parts = list(message.parts)
    for edit in sorted(edits, key=lambda edit: edit.span.part or 0, reverse=True):  # from the back: places hold
        if edit.span.part is not None:
            parts[edit.span.part : edit.span.part + 1] = edit.replacement  # type: ignore[assignment]
    return tuple(parts)


def build_projection(state: ConversationState) -> list[SizedMessage]:
    """Return what a request shows: pinned messages, the summary, the kept slots with the recorded edits applied."""
    out = state.history.sized_messages.slice(0, state.view.pinned_count)
    if state.view.compaction is not None and state.view.compaction.summary is not None:
        out.append(build_summary_message(state.view.compaction, state.last_request.model, state.last_request.api))
    if not state.view.edits:
        out += state.history.sized_messages.slice(state.view.first_kept)
        return out
    index, stop = state.view.first_kept, len(state.history.sized_messages)
    while index < stop:
        out += list_shown_sized_messages_at(state, index)
        index = get_next_shown_index(state, index)
    return out


class NativeSummary(Struct, frozen=True):
    """What a provider made of a head: items for ``model`` on ``api``, and their ``tokens`` where it counted them."""

    api: str = ""
    model: str = ""
    items: list[Raw] = []
    tokens: int = 0


def decode_native_summary(compaction: CompactionEntry) -> NativeSummary | None:
    """Return what the provider made, where one did and its items can be read."""
    if compaction.native is None:
        return None
    try:
        native = get_decoder(NativeSummary).decode(compaction.native)
    except msgspec.MsgspecError:
        return None
    return native if native.items else None


def build_summary_message(compaction: CompactionEntry, model: str = "", api: str = "") -> SizedMessage:
    """Return the slot of a compaction's summary, which must have one, as ``model`` on ``api`` is shown it.

    What a provider made is its bytes on that API, for that model; elsewhere there is the readable twin alone. Where
    ``model`` or ``api`` is not known it may be any.
    """
    summary, native = compaction.summary or Message("user"), _get_readable_native(compaction, model, api)
    if native is None:
        return SizedMessage(summary, _measure_readable_summary(compaction), _hash_summary(compaction))
    raw = Raw(b",".join(bytes(item) for item in native.items))
    return SizedMessage(summary, compaction.head_tokens, _hash_summary(compaction), native.api, raw)


def measure_native_summary(compaction: CompactionEntry | None, model: str, api: str) -> int:
    """Return ``measure_summary`` where a provider compacted, which is not the same for everybody; 0 elsewhere."""
    return measure_summary(compaction, model, api) if compaction is not None and compaction.native is not None else 0


def measure_summary(compaction: CompactionEntry, model: str = "", api: str = "") -> int:
    """Return the size of what ``build_summary_message`` returns; what was told of a compaction without a summary."""
    is_native = compaction.native is not None and _get_readable_native(compaction, model, api) is not None
    return compaction.head_tokens if is_native else _measure_readable_summary(compaction)


def get_shown_tokens(state: ConversationState, model: str, api: str) -> int:
    """Return the size of the projection as ``model`` on ``api`` is shown it.

    ``state.shown_tokens`` is the size for the model asked last.
    """
    return state.view.shown_tokens + get_native_tokens(state, model, api) - state.view.native_tokens


def get_native_tokens(state: ConversationState, model: str, api: str) -> int:
    """Return ``state.native_tokens`` as ``model`` on ``api`` is shown it; as it is where the compaction is not here."""
    is_same_target = state.view.compaction is None or (model, api) == (state.last_request.model, state.last_request.api)
    return state.view.native_tokens if is_same_target else measure_native_summary(state.view.compaction, model, api)


def _get_readable_native(compaction: CompactionEntry, model: str, api: str) -> NativeSummary | None:
    """Return what the provider made, where ``model`` on ``api`` can read it."""
    native = decode_native_summary(compaction)
    if native is None or (model and native.model and model != native.model) or (api and api != native.api):
        return None
    return native


CHARS_PER_READABLE_TOKEN = 4
"""Characters for one token of a readable twin that nobody counted, as in older logs."""


def _measure_readable_summary(compaction: CompactionEntry) -> int:
    """Return the size of the summary itself."""
    if compaction.native is None or compaction.readable_tokens or compaction.summary is None:
        return compaction.readable_tokens or compaction.head_tokens
    return max(compaction.head_tokens, len(compaction.summary.text) // CHARS_PER_READABLE_TOKEN)


_newest_digest: tuple[CompactionEntry, bytes] | None = None
"""The compaction whose digest was taken last, and that digest: every entry behind a compaction asks for it again, and
to pack a long summary each time took a fifth of what it takes to fold a long log."""


def _hash_summary(compaction: CompactionEntry) -> bytes:
    """Return the digest of what stands for the head: of the summary, and of what a provider made beside it."""
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
    """Return how many messages a request shows before the first kept one: the pinned ones, and the summary."""
    return state.view.pinned_count + (state.view.compaction is not None and state.view.compaction.summary is not None)


def apply_normalization(sized_messages: list[SizedMessage], repairs: Iterable[Edit]) -> list[SizedMessage]:
    """Return a projection with ``repairs`` applied; their spans count positions in ``sized_messages``."""
    out: list[SizedMessage] = []
    cursor = 0
    for edit in repairs:
        out += sized_messages[cursor : edit.span.start]
        old = sized_messages[edit.span.start : edit.span.stop]
        base = (old[0].raw or old[0].base_raw) if len(old) == len(edit.replacement) == 1 else None
        size = sum(sized_message.tokens for sized_message in old)
        for message in edit.replacement:
            if isinstance(message, Message):
                out.append(
                    SizedMessage(message, size, compute_value_digest(message), old[0].api if old else "", None, base)
                )
                size = 0
        cursor = edit.span.stop
    return out + sized_messages[cursor:]


def map_normalized_position(position: int, repairs: Iterable[Edit]) -> int:
    """Return where position ``position`` of a projection stands once ``repairs`` are applied."""
    shift = 0
    for edit in repairs:
        if edit.span.start > position:
            break
        if edit.span.stop > position:
            return max(0, edit.span.start + shift + len(edit.replacement) - 1)
        shift += len(edit.replacement) - (edit.span.stop - edit.span.start)
    return position + shift


def list_projection_origins(state: ConversationState) -> list[int]:
    """Return, for each slot of ``build_projection(branch)``, the index of the slot it came from; -1 is the summary."""
    out = [*range(state.view.pinned_count), *[-1] * (count_leading_messages(state) - state.view.pinned_count)]
    index, stop = state.view.first_kept, len(state.history.sized_messages)
    while index < stop:
        out += [index] * len(list_shown_sized_messages_at(state, index))
        index = get_next_shown_index(state, index)
    return out


def compute_prefix_digest(state: ConversationState) -> str:
    """Return the digest of the whole projection with its frame: equal basis, equal prefix."""
    return compute_prefix_digest_at(state, len(state.history.sized_messages))


def compute_prefix_digest_at(state: ConversationState, count: int) -> str:
    """Return the basis of the projection of the first ``count`` slots."""
    return blake2b(state.setup.digest.encode() + get_projection_digest_at(state, count), digest_size=16).hexdigest()


def get_projection_digest_at(state: ConversationState, count: int) -> bytes:
    """Return the digest of the projection of the first ``count`` slots; nothing where there are fewer."""
    if count > len(state.history.sized_messages):
        return b""
    return (
        state.history.projection_digests[count - 1] if count > state.view.first_kept else compute_leading_digest(state)
    )


# -- digests -----------------------------------------------------------------------------------------------------------


"""The digest of nothing yet: to copy it is quicker than to make it."""


def chain_digest(before: bytes, digest: bytes) -> bytes:
    """Return the digest of what stood before and of one message more."""
    hasher = EMPTY_HASHER.copy()
    hasher.update(before + digest)
    return hasher.digest()


def compute_value_digest(message: Struct) -> bytes:
    """Return the digest of a value's content."""
    return blake2b(pack_value(message), digest_size=16).digest()


def compute_leading_digest(state: ConversationState) -> bytes:
    """Return the digest of what stands before the first kept slot."""
    mark = state.history.projection_digests[state.view.pinned_count - 1] if state.view.pinned_count else ROOT_DIGEST
    return mark if state.view.compaction is None else chain_digest(mark, _hash_summary(state.view.compaction))


def list_shown_indexes(state: ConversationState, start: int) -> Sequence[int]:
    """Return the slots from ``start`` on for which something is shown: not those that an edit of several took."""
    covered_indexes = {
        place
        for index, edits in state.view.edits.iter_from(state.view.first_kept)
        if any(edit.span.part is None for edit in edits)
        for place in range(index + 1, get_next_shown_index(state, index))
    }
    every = range(start, len(state.history.sized_messages))
    return [index for index in every if index not in covered_indexes] if covered_indexes else every


def get_next_shown_index(state: ConversationState, index: int) -> int:
    """Return the slot after ``index`` in the projection; an edit may have taken several."""
    for edit in state.view.edits.get(index, ()):
        if edit.span.part is None:
            return max(edit.span.stop, index + 1)
    return index + 1


def get_valid_measured_request(state: ConversationState) -> MeasuredRequest | None:
    """Return the request whose size was told, if what it showed still stands; so it does once a decision is undone."""
    measurement = state.usage.measured_request
    if measurement is None or not measurement.projection_digest:
        return None
    if measurement.native_tokens != state.view.native_tokens:
        return None
    is_shown = measurement.projection_digest == get_projection_digest_at(state, measurement.message_count)
    return measurement if is_shown else None


def get_valid_last_answer(state: ConversationState) -> LastAnswerUsage | None:
    """Return what was in use at the newest good answer, under the summary that is shown now."""
    answer = state.usage.last_answer
    return answer if answer is not None and answer.base_digest == compute_leading_digest(state) else None
