"""A message of the log in the bytes in which its client sent it back: whole or in pieces, with all of it or less."""

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
    """Return ``logged`` in the bytes of ``client_message``, unless it was cut when it was appended, or they lack what
    they need.

    Where both are equal it is ``client_message`` itself, which its client's next request holds, too.
    """
    if client_message.raw is None or (client_message.api == logged.api and client_message.raw == logged.raw):
        return client_message if client_message == logged else logged
    if client_message.digest != logged.digest and not is_equivalent_message(logged.message, client_message.message):
        return logged
    result = _replace_bytes(logged, client_message.message, client_message.api, client_message.raw)
    whole = (logged.tokens, logged.digest, None) == (
        client_message.tokens,
        client_message.digest,
        client_message.base_raw,
    )
    return client_message if whole and result.message is client_message.message else result


def find_message_pieces(message: SizedMessage, messages: Sequence[SizedMessage]) -> list[SizedMessage]:
    """Return those of ``messages``, from the first on, that may be what ``message`` came back as: they say as much
    together.
    """
    remaining = len(encode_comparable_bytes(message.message))
    for at, piece in enumerate(messages):
        piece_length = len(encode_comparable_bytes(piece.message))
        if piece_length > remaining:
            return [*messages[:at]] if not remaining else []
        remaining -= piece_length
    return [] if remaining else [*messages]


def adopt_piece_bytes(message: SizedMessage, messages: Sequence[SizedMessage]) -> SizedMessage:
    """Return ``message`` in the bytes of ``messages``, which it came back as.

    They stay apart where their API takes them so: Gemini takes no call behind another answer.
    """
    spec, raws = API_SPECS.get(messages[0].api), [message.raw for message in messages if message.raw is not None]
    if spec is None or len(raws) < len(messages):
        return message
    joined_message, raw = join_message_run(messages), Raw(b",".join(raws))
    if get_api_dialect(spec.api, "").calls_follow_user and any(message.message.calls for message in messages[1:]):
        raw = Raw(b",".join(spec.encode_message(joined_message, None)))
        joined_message = spec.decode_message(raw)
    return _replace_bytes(message, joined_message, spec.api, raw)


def join_message_run(messages: Sequence[SizedMessage]) -> Message:
    """Return the messages of ``messages`` as one."""
    return Message(
        messages[0].message.role, tuple([part for sized_message in messages for part in sized_message.message.parts])
    )


def _replace_bytes(message: SizedMessage, echoed_message: Message, api: str, raw: Raw) -> SizedMessage:
    """Return ``message`` in the bytes ``raw`` of ``echoed_message``, which is alike; ``message`` where they lack what
    they need.

    Its parts stay as many and in the places that they have in the log, which decisions are about.
    """
    bare, own_parts, echoed_parts = (
        replace(message, api=api, raw=raw, base_raw=None),
        message.message.parts,
        echoed_message.parts,
    )
    if list(map(type, own_parts)) == list(map(type, echoed_parts)):
        return replace(bare, message=copy_signing_models(echoed_message, message.message))
    if not _is_self_contained(bare, echoed_message):
        return message
    parts = _align_parts(own_parts, echoed_parts)
    return (
        bare
        if parts is None
        else replace(bare, message=copy_signing_models(Message(echoed_message.role, parts), message.message))
    )


def _is_self_contained(message: SizedMessage, echoed_message: Message) -> bool:
    """Whether the bytes of ``message``, which are those of ``echoed_message``, need nothing that it has in the log and
    not there.

    A signature on what is no reasoning does, and an item of Responses does by its id where anything is left out. Else
    what a client leaves out it does not want to be sent.
    """
    if list_non_thinking_signatures(message.message) != list_non_thinking_signatures(echoed_message):
        return False
    if _count_side_parts(message.message) == _count_side_parts(echoed_message):
        return True
    return (
        message.api != RESPONSES
        or message.raw is None
        or all(decode_item(raw).id is None for raw in split_response_items(message.raw))
    )


def _count_side_parts(message: Message) -> int:
    """Return how many parts of ``message`` stand beside what it says: reasoning, above all."""
    return sum(isinstance(part, Thinking) or is_message_field(part) for part in message.parts)


def _align_parts(own_parts: Sequence[Part], echoed_parts: Sequence[Part]) -> tuple[Part, ...] | None:
    """Return each of ``echoed_parts`` in the place of its own among ``own_parts``, where some of these were left out.

    Nothing where they are cut otherwise.
    """
    remaining_parts, out = deque(echoed_parts), list[Part]()
    for part in own_parts:
        if remaining_parts and _is_same_part(part, remaining_parts[0]):
            out.append(remaining_parts.popleft())
        elif isinstance(part, Thinking) or is_message_field(part):
            out.append(part)
        else:
            return None
    return None if remaining_parts else tuple(out)


def _is_same_part(part: Part, echoed_part: Part) -> bool:
    """Whether ``echoed_part`` is what became of ``part``, in messages that are alike."""
    if isinstance(part, Thinking) and isinstance(echoed_part, Thinking):
        return part.text == echoed_part.text
    if isinstance(part, Opaque) and isinstance(echoed_part, Opaque):
        return part.kind == echoed_part.kind
    return type(part) is type(echoed_part)
