"""Compute the session key of a request: where to look for the stored conversation that it continues.

The key comes from the conversation itself, never from the connection. Under the key, the branch is chosen that has most
of the conversation's messages (``open_branches.py``, ``index.py``). A conversation that is not found begins anew:
joining it to a wrong one would show one user's words to another, while missing the right one costs a request without a
cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text, Thinking
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.proxy.conversation.clients import AGENTS, ClientIdentity

SELF_IDENTIFYING_FAMILIES = AGENTS | {"aider"}
"""Families that can be told from each of their requests, as recorded. LangChain and LiteLLM can be only if they do not
stream, so their requests are keyed by API instead."""
THREAD_ROOT = "thread"
"""Stands in a key for the first message if the client names its conversations itself."""
ROOT_DIGEST_BYTES = 8
"""Bytes of the digest of the first message in a key. Among a million sessions in one scope two collide with a
probability of 3e-8."""


def make_session_key(client: ClientIdentity, parsed_body: ParsedRequest, base: str = "") -> str:
    """Return the key of the session that a measured request belongs to: client family, scope, first message.

    A client that names its conversations (``is_thread``) has ``thread`` in place of the first message, since its own
    compaction begins the conversation anew under the same name.

    Not in the key are the system prompt, which changes within a conversation; how the first message was split into
    parts; and which library sent it, because not every request tells (the API stands in its place). ``base``, the
    server that the address names, is in the key only if nothing else tells users apart: limits learned from one server
    do not hold for another.
    """
    family = parsed_body.api
    if client.family in SELF_IDENTIFYING_FAMILIES:
        family = client.family
    if client.is_thread:
        root = THREAD_ROOT
    elif client.scope:
        root = _hash_first_words(parsed_body, "")
    else:
        root = _hash_first_words(parsed_body, base)
    return "-".join([part for part in (family, client.scope, root) if part])


def _hash_first_words(parsed_body: ParsedRequest, base: str) -> str:
    """Return a digest of the first message that is no system message, if there is one, and of ``base``."""
    first = next(iter(parsed_body.messages), None)
    for sized_message in parsed_body.messages:
        if sized_message.message.role != "system":
            first = sized_message
            break
    if first is None:
        return "empty"
    message_digest = _hash_message(first)
    if not base:
        return message_digest
    return blake2b(f"{base} {message_digest}".encode(), digest_size=ROOT_DIGEST_BYTES).hexdigest()


def _hash_message(sized_message: SizedMessage) -> str:
    message = sized_message.message
    parts = _merge_plain_parts(message.parts)
    is_plain = len(parts) == len(message.parts)
    # The message's own digest can be used if merging changed nothing.
    if not (is_plain and sized_message.digest):
        sized_message = build_sized_message(Message(message.role, parts))
    return sized_message.digest[:ROOT_DIGEST_BYTES].hex()


def _merge_plain_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return ``parts`` with adjacent texts merged, and without parts that a client may leave out: thinking, fields."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, Text):
            if merged and isinstance(merged[-1], Text):
                merged[-1] = Text(merged[-1].text + part.text)
            elif part.text:
                merged.append(part)
            continue
        # Extra fields of a message are kept as parts of this kind.
        is_field = isinstance(part, Opaque) and part.kind.startswith("message.")
        if not isinstance(part, Thinking) and not is_field:
            merged.append(part)
    return tuple(merged)
