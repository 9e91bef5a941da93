"""Give a logged message the bytes in which its client sent it back: whole, in pieces, or with parts left out.

The client's bytes are what the provider has seen and cached, so they are the ones to repeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.equality import encode_comparable_bytes, is_equivalent_message, is_message_field
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Thinking
from holdfast.messages.signatures import copy_signing_models, list_non_thinking_signatures
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.openai_responses.items import decode_item, split_response_items
from holdfast.providers.openai_responses.messages import API_NAME as RESPONSES
from holdfast.providers.registry import API_SPECS, get_api_dialect


def adopt_client_bytes(logged: SizedMessage, client_message: SizedMessage) -> SizedMessage:
    """Return ``logged`` in the bytes of ``client_message``.

    Return ``logged`` itself if it was shortened when it was appended, or if the client's bytes lack something that it
    needs. Return ``client_message`` itself if both are equal: the client's next request holds the same object, and is
    then recognized without a comparison.
    """
    if client_message == logged:
        return client_message
    if client_message.raw is None and logged.raw is None:
        return _adopt_parts(logged, client_message)
    if client_message.raw is None or (client_message.api == logged.api and client_message.raw == logged.raw):
        return logged
    # The log holds a shortened text: with the client's bytes the request would show all of it again.
    is_shortened = client_message.digest != logged.digest and not is_equivalent_message(
        logged.message, client_message.message
    )
    if is_shortened:
        return logged
    adopted = _replace_bytes(logged, client_message.message, client_message.api, client_message.raw)
    is_client_message = (
        adopted.message is client_message.message
        and client_message.tokens == logged.tokens
        and client_message.digest == logged.digest
        and client_message.base_raw is None
    )
    return client_message if is_client_message else adopted


def _adopt_parts(logged: SizedMessage, client_message: SizedMessage) -> SizedMessage:
    """Return ``logged`` with the parts of ``client_message``, where neither has bytes, or unchanged.

    An agent framework may give what is beside the content in another form than before, such as reasoning without its
    id. The number and places of parts do not change: recorded decisions name parts by their place.
    """
    own_message, given_message = logged.message, client_message.message
    has_same_parts = [type(part) for part in own_message.parts] == [type(part) for part in given_message.parts]
    # It is not equivalent if the log holds a shortened text: with the given one the request would show all of it again.
    if not has_same_parts or not is_equivalent_message(own_message, given_message):
        return logged
    adopted = replace(logged, message=copy_signing_models(given_message, own_message))
    return client_message if adopted == client_message else adopted


def find_message_pieces(message: SizedMessage, messages: Sequence[SizedMessage]) -> list[SizedMessage]:
    """Return the messages at the start of ``messages`` that together are exactly as long as ``message``.

    The list may be empty. Only lengths are compared, which is cheap; the caller compares the contents.
    """
    remaining_bytes = len(encode_comparable_bytes(message.message))
    pieces: list[SizedMessage] = []
    for piece in messages:
        piece_bytes = len(encode_comparable_bytes(piece.message))
        if piece_bytes > remaining_bytes:
            break
        remaining_bytes -= piece_bytes
        pieces.append(piece)
    # A piece that is thinking alone counts zero bytes, so one at the end is taken along.
    return [] if remaining_bytes else pieces


def adopt_piece_bytes(message: SizedMessage, messages: Sequence[SizedMessage]) -> SizedMessage:
    """Return ``message`` in the bytes of ``messages``, the pieces that it came back in.

    The pieces stay separate elements if their API accepts them so; Gemini accepts no call after another answer.
    """
    spec = API_SPECS.get(messages[0].api)
    raws = [piece.raw for piece in messages if piece.raw is not None]
    if spec is None or len(raws) < len(messages):
        return message
    joined_message = join_message_run(messages)
    raw = Raw(b",".join(raws))
    has_later_calls = any(piece.message.calls for piece in messages[1:])
    # Joined into one message then, in bytes made here: the pieces' own would be refused.
    if has_later_calls and get_api_dialect(spec.api, "").calls_follow_user:
        raw = Raw(b",".join(spec.encode_message(joined_message, None)))
        joined_message = spec.decode_message(raw)
    return _replace_bytes(message, joined_message, spec.api, raw)


def join_message_run(messages: Sequence[SizedMessage]) -> Message:
    """Return one message with the parts of all ``messages``."""
    parts: list[Part] = []
    for sized_message in messages:
        parts += sized_message.message.parts
    return Message(messages[0].message.role, tuple(parts))


def _replace_bytes(
    message: SizedMessage,
    echoed_message: Message,
    api: str,
    raw: Raw,
) -> SizedMessage:
    """Return ``message`` in the bytes ``raw`` of the equivalent ``echoed_message``, or unchanged if those lack a need.

    The number and places of its parts do not change: recorded decisions name parts by their place.
    """
    own_parts = message.message.parts
    echoed_parts = echoed_message.parts
    with_new_bytes = replace(message, api=api, raw=raw, base_raw=None)
    has_same_parts = [type(part) for part in own_parts] == [type(part) for part in echoed_parts]
    if has_same_parts:
        return replace(with_new_bytes, message=copy_signing_models(echoed_message, message.message))
    if not _is_self_contained(with_new_bytes, echoed_message):
        return message
    aligned_parts = _align_parts(own_parts, echoed_parts)
    if aligned_parts is None:
        return with_new_bytes  # the log's own parts, in the client's bytes
    aligned_message = Message(echoed_message.role, aligned_parts)
    return replace(with_new_bytes, message=copy_signing_models(aligned_message, message.message))


def _is_self_contained(message: SizedMessage, echoed_message: Message) -> bool:
    """Return whether the bytes of ``message``, which are those of ``echoed_message``, can be sent without its parts.

    A part that the client left out is one that it does not want to send. That is its choice, except where another part
    needs it: a part with a signature (other than thinking), and an item of the Responses API that has an id: the server
    looks for the reasoning item that belongs to it.
    """
    if list_non_thinking_signatures(message.message) != list_non_thinking_signatures(echoed_message):
        return False
    if _count_side_parts(message.message) == _count_side_parts(echoed_message):
        return True
    if message.api != RESPONSES or message.raw is None:
        return True
    return all(decode_item(raw).id is None for raw in split_response_items(message.raw))


def _is_side_part(part: Part) -> bool:
    """Return whether ``part`` stands beside the content of its message: thinking, above all. Clients may drop these."""
    return isinstance(part, Thinking) or is_message_field(part)


def _count_side_parts(message: Message) -> int:
    return sum(_is_side_part(part) for part in message.parts)


def _align_parts(own_parts: Sequence[Part], echoed_parts: Sequence[Part]) -> tuple[Part, ...] | None:
    """Return ``own_parts`` with each part that came back replaced by the echoed one; the others are kept.

    Return None if parts are missing that clients do not drop: the message was divided into parts in another way.
    """
    remaining_parts = deque(echoed_parts)
    aligned_parts: list[Part] = []
    for part in own_parts:
        if remaining_parts and _is_same_part(part, remaining_parts[0]):
            aligned_parts.append(remaining_parts.popleft())
        elif _is_side_part(part):
            aligned_parts.append(part)
        else:
            return None
    return None if remaining_parts else tuple(aligned_parts)


def _is_same_part(part: Part, echoed_part: Part) -> bool:
    """Return whether ``echoed_part`` is ``part``, given that their messages are equivalent."""
    if isinstance(part, Thinking) and isinstance(echoed_part, Thinking):
        return part.text == echoed_part.text
    if isinstance(part, Opaque) and isinstance(echoed_part, Opaque):
        return part.kind == echoed_part.kind
    return type(part) is type(echoed_part)
