"""Which conversation a call belongs to: LiteLLM gives the messages of each call, and may give names."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from holdfast.integrations.common.options import make_conversation_key
from holdfast.integrations.common.unnamed_conversations import UnnamedConversations, iter_prefix_digests
from holdfast.integrations.litellm.messages import ReadConversation
from holdfast.messages.equality import encode_comparable_bytes

METADATA_FIELDS = ("metadata", "litellm_metadata")
OWNER_FIELDS = ("user_api_key_hash", "user_api_key_team_id", "user_api_key_user_id", "user_api_key_end_user_id")
"""Who calls, in the metadata that LiteLLM's proxy server adds."""


class ConversationKeys:
    """Gives each conversation its key.

    One with a session id has the same key in every process. One without is recognized by its whole history, in this
    process alone.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_hex(8)
        self._unnamed = UnnamedConversations()

    def choose_key(self, conversation: ReadConversation, options: Mapping[str, Any]) -> str:
        """Return the key of the conversation of a call, and remember its messages."""
        session_id = find_session_id(options)
        if session_id:
            return _make_named_key(conversation, session_id, options)
        beginning = _make_named_key(conversation, self._secret, options)
        return self._unnamed.choose_key(beginning, list(iter_prefix_digests(map(bytes, conversation.raws))))

    def find_key(self, conversation: ReadConversation, options: Mapping[str, Any]) -> str | None:
        """Return the key of a conversation whose calls went through here; None if it is not known."""
        session_id = find_session_id(options)
        if session_id:
            return _make_named_key(conversation, session_id, options)
        beginning = _make_named_key(conversation, self._secret, options)
        return self._unnamed.find_key(beginning, list(iter_prefix_digests(map(bytes, conversation.raws))))


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
