"""Recognize conversations that nobody gave a name: each request has their whole history."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from threading import Lock

from msgspec import Struct

from holdfast.integrations.common.options import MAX_OPEN_HISTORIES

MAX_CONVERSATIONS_OF_A_BEGINNING = 64
"""Conversations without a name that begin with the same message and are remembered. Chosen by judgement."""


class _UnnamedConversation(Struct):
    key: str
    count: int
    """How many messages the newest request had."""
    digest: bytes
    """Of these messages."""


class UnnamedConversations:
    """The conversations of this process that have no name.

    A request goes on with the conversation whose messages its own begin with. So two users who begin with the same
    words, and go on differently, never read each other's texts; and after a restart it is a new conversation.

    ``beginning`` is the key of all conversations with one owner and one first message; ``digests`` are those of
    ``iter_prefix_digests`` for a request.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._conversations: OrderedDict[str, list[_UnnamedConversation]] = OrderedDict()
        """By their beginning; the one used last is last."""

    def choose_key(self, beginning: str, digests: Sequence[bytes]) -> str:
        """Return the key of the conversation that a request goes on with, or of a new one, and remember the request."""
        with self._lock:
            known = self._find_longest(beginning, digests, min_count=1)
            # Random, since a number would be given again after a restart.
            key = known.key if known is not None else f"{beginning}-{secrets.token_hex(4)}"
            self._remember(beginning, key, digests)
            return key

    def find_key(self, beginning: str, digests: Sequence[bytes], *, min_count: int = 1) -> str | None:
        """Return the key of the conversation that a request goes on with; None if none is known.

        ``min_count`` is the number of messages that it must have had at least.
        """
        with self._lock:
            known = self._find_longest(beginning, digests, min_count)
        return None if known is None else known.key

    def note_request(self, beginning: str, key: str, digests: Sequence[bytes]) -> None:
        """Remember a request of the conversation called ``key``, which may have begun with other messages until now."""
        with self._lock:
            self._remember(beginning, key, digests)

    def _find_longest(self, beginning: str, digests: Sequence[bytes], min_count: int) -> _UnnamedConversation | None:
        """Return the longest known conversation that these messages continue or repeat."""
        matches = [
            known
            for known in self._conversations.get(beginning, ())
            if min_count <= known.count <= len(digests) and known.digest == digests[known.count - 1]
        ]
        return max(matches, key=lambda known: known.count, default=None)

    def _remember(self, beginning: str, key: str, digests: Sequence[bytes]) -> None:
        """Put the newest request of a conversation last, and forget the oldest ones beyond the limits."""
        conversations = [known for known in self._conversations.pop(beginning, ()) if known.key != key]
        conversations.append(_UnnamedConversation(key, len(digests), digests[-1]))
        del conversations[:-MAX_CONVERSATIONS_OF_A_BEGINNING]
        self._conversations[beginning] = conversations
        while len(self._conversations) > MAX_OPEN_HISTORIES:
            self._conversations.popitem(last=False)


def iter_prefix_digests(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the digest of the first message, of the first two, and so on."""
    hasher = blake2b(digest_size=16)
    for message in messages:
        hasher.update(len(message).to_bytes(8, "big"))
        hasher.update(message)
        yield hasher.copy().digest()
