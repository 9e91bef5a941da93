"""The tags between which the writer of a summary finds what it reads; nothing inside can close them."""

from __future__ import annotations

import re

CONVERSATION, PREVIOUS, PARTIAL = "conversation", "previous-summary", "partial-summary"
"""What was said; the summary in force; summaries of its parts."""
FOCUS, CONTEXT = "user-focus", "added-context"
"""What the user wants to be looked at; what a hook adds."""
_NAMES = (CONVERSATION, PREVIOUS, PARTIAL, FOCUS, CONTEXT)
_UNSEEN = r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]*+"
_JOINT = r"[-_\s\u2010-\u2015\u2212]*+"


def _pattern(name: str) -> str:
    return _JOINT.join(_UNSEEN.join(word) for word in name.split("-"))


_TAGS = re.compile(
    rf"[<\u2039\u2329\u276e\u27e8\u3008\ufe64\uff1c](?=[\s/\\!?]*+{_UNSEEN}(?:{'|'.join(map(_pattern, _NAMES))}))",
    re.IGNORECASE,
)
"""The bracket of anything that looks like one of these tags."""


def unclosing(text: str) -> str:
    """Return ``text`` with the bracket of whatever looks like one of our tags escaped."""
    return _TAGS.sub("&lt;", text)


def within(tag: str, text: str) -> str:
    """Return ``text`` between an opening and a closing ``tag``, which is the only one there is."""
    return f"<{tag}>\n{unclosing(text)}\n</{tag}>"
