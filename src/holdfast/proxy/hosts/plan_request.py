"""Read the body of ``POST /v1/plan``: a whole conversation as a plugin hands it over before each request.

Every mistake is a ``TranscriptError`` with the JSON path and one thing to do.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from hashlib import blake2b
from threading import Lock
from typing import Annotated

from msgspec import Meta, Raw, Struct

from holdfast.hosts.given_conversation import GivenConversation
from holdfast.hosts.transcript import (
    MAX_WINDOW,
    AnswerUsage,
    TranscriptError,
    TranscriptMessage,
    check_messages_and_window,
    decode_envelope,
    measure_transcript_messages,
    read_message,
)
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.registry import API_SPECS
from holdfast.state.entries import Usage

MAX_REMEMBERED_SESSIONS = 256
"""Sessions whose messages are remembered: one for each branch in memory (``open_branches.MAX_BRANCHES``)."""
MAX_REMEMBERED_BYTES = 256 << 20
"""Bytes of all their messages together, as their hosts sent them, apart from the session used last. As much as
``BodyCache`` keeps for the clients of the proxy."""
HANDLE_ADVICE = "give each message a name of its own in this call"
MAX_CLIENT_CHARS = 32
_CLIENT_PATTERN = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
_PLAIN_SESSION_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")
"""Names of sessions that are readable, and allowed, in a key as they are."""


class _PlanEnvelope(
    Struct,
    frozen=True,
    rename={"setup_tokens": "setupTokens", "wants_compaction": "force"},
):
    """The fields of the body; unknown ones are a newer plugin's and are left alone."""

    client: str
    session: str
    messages: list[Raw]
    api: str = "anthropic"
    model: str = ""
    window: int | None = None
    setup_tokens: Annotated[int, Meta(ge=0, le=MAX_WINDOW)] = 0
    wants_compaction: bool = False


class PlanRequest(Struct, frozen=True):
    """A conversation of which the next request is to be planned."""

    session_key: str
    conversation: GivenConversation
    handles: tuple[str, ...]
    """The host's name for each message of the conversation."""
    api: str
    model: str
    window: int | None
    """The window of the model in tokens, if the host says it."""
    wants_compaction: bool
    """Whether to compact whatever the size: the user asked for it, or the provider refused a request."""


class _ParsedMessage(Struct, frozen=True):
    """A message that was parsed and measured once."""

    sized_message: SizedMessage
    handle: str
    usage: Usage | None


class PlanRequestReader:
    """Reads bodies, and remembers each session's messages: a plugin sends its whole conversation each time."""

    def __init__(self) -> None:
        self._parsed_messages: OrderedDict[str, dict[bytes, _ParsedMessage]] = OrderedDict()
        """By session, the one used last at the end; then by the digest of the message's bytes."""
        self._session_bytes: dict[str, int] = {}
        self._lock = Lock()
        """Large bodies are read in a thread, small ones beside it."""

    def read(self, body: bytes) -> PlanRequest:
        """Read and measure ``body``; raise ``TranscriptError`` if it is no request of this endpoint."""
        envelope = decode_envelope(body, _PlanEnvelope)
        check_messages_and_window(envelope.messages, envelope.window)
        if envelope.api not in API_SPECS:
            names = ", ".join(API_SPECS)
            raise TranscriptError("api", f"{envelope.api[:80]!r} is not known", f"give one of {names}, or leave it out")
        session_key = make_plugin_session_key(envelope.client, envelope.session)
        with self._lock:
            parsed_messages = self._parse_new_messages(session_key, envelope.messages)
        handles = tuple(message.handle for message in parsed_messages)
        _check_handles_differ(handles)
        conversation = GivenConversation(
            tuple(message.sized_message for message in parsed_messages),
            tuple(message.usage for message in parsed_messages),
            envelope.setup_tokens,
        )
        return PlanRequest(
            session_key,
            conversation,
            handles,
            envelope.api,
            envelope.model,
            envelope.window,
            envelope.wants_compaction,
        )

    def _parse_new_messages(self, session_key: str, raw_messages: list[Raw]) -> list[_ParsedMessage]:
        """Return all of ``raw_messages``; only those that the last call did not have are parsed and measured."""
        known_messages = self._parsed_messages.get(session_key, {})
        digests = [blake2b(raw, digest_size=16).digest() for raw in raw_messages]
        new_messages: dict[bytes, TranscriptMessage] = {}
        for index, (digest, raw) in enumerate(zip(digests, raw_messages, strict=True)):
            if digest not in known_messages:
                new_messages[digest] = read_message(raw, f"messages[{index}]")
        sized_messages = measure_transcript_messages(list(new_messages.values()))
        messages_by_digest = dict(known_messages)
        for (digest, message), sized_message in zip(new_messages.items(), sized_messages, strict=True):
            if message.handle is None:
                path = f"messages[{digests.index(digest)}].handle"
                raise TranscriptError(path, "it is missing", HANDLE_ADVICE)
            messages_by_digest[digest] = _ParsedMessage(sized_message, message.handle, _convert_usage(message.usage))
        # Two lists with messages of the same bytes have the same objects, which is how the log recognizes them quickly.
        current_messages = {digest: messages_by_digest[digest] for digest in digests}
        self._remember_messages(session_key, current_messages, sum(map(len, raw_messages)))
        return [current_messages[digest] for digest in digests]

    def _remember_messages(self, session_key: str, messages: dict[bytes, _ParsedMessage], size: int) -> None:
        """Remember ``messages``, of ``size`` bytes, and forget those of the sessions that were not used for longest."""
        self._parsed_messages[session_key] = messages
        self._parsed_messages.move_to_end(session_key)
        self._session_bytes[session_key] = size
        while len(self._parsed_messages) > 1 and self._is_over_limit():
            forgotten_key, _ = self._parsed_messages.popitem(last=False)
            del self._session_bytes[forgotten_key]

    def _is_over_limit(self) -> bool:
        is_over_sessions = len(self._parsed_messages) > MAX_REMEMBERED_SESSIONS
        return is_over_sessions or sum(self._session_bytes.values()) > MAX_REMEMBERED_BYTES


def _convert_usage(usage: AnswerUsage | None) -> Usage | None:
    """Return the usage as the log has it, in which the prompt's tokens include those of the cache."""
    if usage is None:
        return None
    prompt_tokens = usage.input + usage.cache_read + usage.cache_write
    return Usage(prompt_tokens, usage.output, usage.cache_read, usage.cache_write)


def make_plugin_session_key(client: str, session: str) -> str:
    """Return the key in the store of the conversation that ``client`` calls ``session``.

    Raises ``TranscriptError`` for a client whose name cannot be part of a key, and for an empty session.
    """
    if not _CLIENT_PATTERN.match(client) or len(client) > MAX_CLIENT_CHARS:
        why = f"{client[:80]!r} is no name of a program"
        raise TranscriptError(
            "client", why, "give at most 32 lower-case letters and digits, with single hyphens between"
        )
    if not session:
        raise TranscriptError("session", "it is empty", "give the name that the host has for this conversation")
    if not _PLAIN_SESSION_PATTERN.match(session):
        session = blake2b(session.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{client}-plugin-{session}"


def _check_handles_differ(handles: tuple[str, ...]) -> None:
    if len(set(handles)) == len(handles):
        return
    seen_handles: set[str] = set()
    for index, handle in enumerate(handles):
        if handle in seen_handles:
            path = f"messages[{index}].handle"
            raise TranscriptError(
                path, f"{handle[:80]!r} is used twice", "give each message a name of its own in this call"
            )
        seen_handles.add(handle)
