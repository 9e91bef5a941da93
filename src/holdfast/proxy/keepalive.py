"""Signs of life: what a client is sent while nobody says anything, so that it does not give the answer up.

Only until the first piece comes, for until then the wait is ours: a compaction, another try. From there on the
provider's own pace is passed through, its own pings too.
"""

from __future__ import annotations

_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_COMMENT = b": keep-alive\n\n"
_BLANK = b"\n\n"
_SIGNS = {"anthropic": _PING, "openai-chat": _COMMENT, "openai-responses": _COMMENT, "gemini": _BLANK}
"""What the clients of an API read over. [M] google-genai 3.4 takes every line that is neither blank nor ``data:`` for
JSON and dies of a comment; a blank line it skips."""


def sign_of(api: str, *, stream: bool) -> bytes:
    """Return the bytes by which a client of ``api`` knows that its answer is still worked on; none without a stream."""
    return _SIGNS.get(api, b"") if stream else b""
