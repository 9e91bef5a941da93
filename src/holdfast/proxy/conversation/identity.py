"""Which stored conversation a request continues: told from what it says, never from where it comes from.

A key is where to look; the branch found there is the one that says most of the same, message by message. What finds
nothing begins anew: a wrong join would put one conversation's words into another, a missed one costs a cold request.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text, Thinking
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.request_body import ParsedRequest
from holdfast.proxy.conversation.clients import AGENTS, ClientIdentity

SELF_IDENTIFYING_FAMILIES = AGENTS | {"aider"}
"""Families of which each request tells whose it is [M]; LangChain's and LiteLLM's do so where they do not stream."""
THREAD_ROOT = "thread"
"""What stands in the place of the first words where all that a client says in a scope is one conversation."""
ROOT_DIGEST_BYTES = 8
"""[H] Bytes of the digest that a key ends with: a store with a million roots in one scope shares one by 3e-8."""


def make_session_key(client: ClientIdentity, parsed_body: ParsedRequest, base: str = "") -> str:
    """Return the key of the session that ``parsed_body``, measured, is part of: family, scope and first words.

    Where the scope is one conversation it is a ``thread``, whatever its first words are: what a client's own compaction
    makes of it is another branch of it, and begins otherwise.
    The system prompt is not among them, since it changes within a conversation; nor is how the words were cut up, nor
    which library sent them: not every request of one tells, so the API stands in its place. ``base`` is whom its
    address names: what one server taught is not true of another, where nothing but the first words are the same.
    """
    family = client.family if client.family in SELF_IDENTIFYING_FAMILIES else parsed_body.api
    root = THREAD_ROOT if client.is_thread else _hash_first_words(parsed_body, "" if client.scope else base)
    return "-".join([part for part in (family, client.scope, root) if part])


def _hash_first_words(parsed_body: ParsedRequest, base: str) -> str:
    """Return a digest of the first words, those of a system aside where there are others, said to ``base``."""
    first = next(
        (sized_message for sized_message in parsed_body.messages if sized_message.message.role != "system"),
        next(iter(parsed_body.messages), None),
    )
    if first is None:
        return "empty"
    return (
        blake2b(f"{base} {_hash_message(first)}".encode(), digest_size=ROOT_DIGEST_BYTES).hexdigest()
        if base
        else _hash_message(first)
    )


def _hash_message(message: SizedMessage) -> str:
    parts = _merge_plain_parts(message.message.parts)
    is_plain = len(parts) == len(message.message.parts)
    return (
        (message if is_plain and message.digest else build_sized_message(Message(message.message.role, parts)))
        .digest[:ROOT_DIGEST_BYTES]
        .hex()
    )


def _merge_plain_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return what is said, words that stand together as one text, without fields that a client may leave out."""
    out: list[Part] = []
    for part in parts:
        if isinstance(part, Text) and out and isinstance(out[-1], Text):
            out[-1] = Text(out[-1].text + part.text)
        elif isinstance(part, Text):
            out += [part] if part.text else []
        elif not isinstance(part, Thinking) and not (isinstance(part, Opaque) and part.kind.startswith("message.")):
            out.append(part)
    return tuple(out)
