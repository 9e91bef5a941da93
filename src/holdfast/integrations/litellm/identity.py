"""Which conversation a call belongs to: LiteLLM gives the messages of each call, and may give names."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any

from msgspec import Raw, Struct

from holdfast.integrations.common.options import MAX_OPEN_HISTORIES, make_conversation_key
from holdfast.integrations.litellm.messages import ReadConversation
from holdfast.messages.equality import encode_comparable_bytes

METADATA_FIELDS = ("metadata", "litellm_metadata")
OWNER_FIELDS = ("user_api_key_hash", "user_api_key_team_id", "user_api_key_user_id", "user_api_key_end_user_id")
"""Who calls, in the metadata that LiteLLM's proxy server adds."""
MAX_CONVERSATIONS_OF_A_BEGINNING = 64
"""Conversations without a name that begin with the same message and are remembered. Chosen by judgement."""


class _UnnamedConversation(Struct):
    key: str
    count: int
    """How many messages the newest call had."""
    digest: bytes
    """Of these messages."""


class ConversationKeys:
    """Gives each conversation its key.

    One with a session id has the same key in every process. One without is recognized by its whole history: a call goes
    on with the conversation whose messages its own begin with. So two users who begin with the same words, and go on
    differently, never read each other's texts; and after a restart it is a new conversation.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_hex(8)
        self._lock = Lock()
        self._unnamed: OrderedDict[str, list[_UnnamedConversation]] = OrderedDict()
        """By the digest of owner and first message; the one used last is last."""

    def choose_key(self, conversation: ReadConversation, options: Mapping[str, Any]) -> str:
        """Return the key of the conversation of a call, and remember its messages."""
        session_id = find_session_id(options)
        if session_id:
            return _make_named_key(conversation, session_id, options)
        beginning = self._digest_beginning(conversation, options)
        digests = list(_iter_prefix_digests(conversation.raws))
        with self._lock:
            known = self._find_known(beginning, digests)
            if known is None:
                # Random, since a number would be given again after a restart.
                known = _UnnamedConversation(f"litellm-{beginning}-{secrets.token_hex(4)}", 0, b"")
                self._remember(beginning, known)
            known.count, known.digest = len(digests), digests[-1]
            return known.key

    def find_key(self, conversation: ReadConversation, options: Mapping[str, Any]) -> str | None:
        """Return the key of a conversation whose calls went through here; None if it is not known."""
        session_id = find_session_id(options)
        if session_id:
            return _make_named_key(conversation, session_id, options)
        digests = list(_iter_prefix_digests(conversation.raws))
        with self._lock:
            known = self._find_known(self._digest_beginning(conversation, options), digests)
        return None if known is None else known.key

    def _find_known(self, beginning: str, digests: Sequence[bytes]) -> _UnnamedConversation | None:
        """Return the longest known conversation that these messages continue or repeat."""
        matches = [
            known
            for known in self._unnamed.get(beginning, ())
            if known.count <= len(digests) and known.digest == digests[known.count - 1]
        ]
        return max(matches, key=lambda known: known.count, default=None)

    def _remember(self, beginning: str, conversation: _UnnamedConversation) -> None:
        conversations = self._unnamed.pop(beginning, [])
        self._unnamed[beginning] = [*conversations[-MAX_CONVERSATIONS_OF_A_BEGINNING + 1 :], conversation]
        while len(self._unnamed) > MAX_OPEN_HISTORIES:
            self._unnamed.popitem(last=False)

    def _digest_beginning(self, conversation: ReadConversation, options: Mapping[str, Any]) -> str:
        return _make_named_key(conversation, self._secret, options)


def find_session_id(options: Mapping[str, Any]) -> str:
    """Return the caller's name of the conversation, or an empty text.

    ``litellm_trace_id`` is none: LiteLLM makes one up for every call of a router.
    """
    names = [options.get("litellm_session_id")]
    names += [metadata.get("session_id") for metadata in _list_metadata(options)]
    return next((str(name) for name in names if name), "")


def _make_named_key(conversation: ReadConversation, session_id: str, options: Mapping[str, Any]) -> str:
    """Return the key of a conversation with a name: sub-agents share that, and begin with another message."""
    first_message = encode_comparable_bytes(conversation.first_message).decode("latin-1")
    return make_conversation_key("litellm", session_id, *_list_owners(options), first_message)


def _list_owners(options: Mapping[str, Any]) -> list[str]:
    """Return who calls, as far as it is known: the end user that the caller names, and the proxy's callers."""
    owners = [str(options.get("user") or "")]
    for metadata in _list_metadata(options):
        owners += [str(metadata.get(field) or "") for field in OWNER_FIELDS]
    return owners


def _list_metadata(options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = [options.get(name) for name in METADATA_FIELDS]
    return [metadata for metadata in fields if isinstance(metadata, Mapping)]


def _iter_prefix_digests(raws: Sequence[Raw]) -> Iterator[bytes]:
    """Yield the digest of the first message, of the first two, and so on."""
    hasher = blake2b(digest_size=16)
    for raw in raws:
        content = bytes(raw)
        hasher.update(len(content).to_bytes(8, "big"))
        hasher.update(content)
        yield hasher.copy().digest()
