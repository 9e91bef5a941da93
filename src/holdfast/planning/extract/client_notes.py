"""Separate the user's own words from notes that a client writes into user messages in tags of its own.

Notes of the first message (the rules of a project, the working folder) are worth quoting, after the user's words. Notes
of later messages described a moment that has passed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Tags of Claude Code and, the last, of Codex, as recorded. A tag counts only at the start of a line: elsewhere it is
# something that a user talks about.
_NOTE_OPENING = re.compile(
    r"^[ \t]*(<(?:system-reminder|local-command-caveat|local-command-stdout|environment_context)>)",
    re.MULTILINE,
)
_LINE_END = re.compile(r"[ \t]*(?:\n|\Z)")


class SplitUserText(NamedTuple):
    """A user text in two: what the user wrote, and what the client noted."""

    own_words: str
    notes: str


def split_client_notes(text: str) -> SplitUserText:
    """Split ``text`` into the user's words and the content of the client's notes.

    A note takes whole lines. A tag that is only mentioned in a line, or is never closed, stays in the user's words.
    """
    own_words: list[str] = []
    notes: list[str] = []
    position = 0
    while (opening := _NOTE_OPENING.search(text, position)) is not None:
        closing_tag = opening[1].replace("<", "</")
        note_end = text.find(closing_tag, opening.end())
        if note_end < 0:
            break
        tag_end = note_end + len(closing_tag)
        if _LINE_END.match(text, tag_end) is not None:
            own_words.append(text[position : opening.start()])
            note = text[opening.end() : note_end].strip()
            if note:
                notes.append(note)
        else:  # words follow on the same line: the user quotes a tag
            own_words.append(text[position:tag_end])
        position = tag_end
    own_words.append(text[position:])
    return SplitUserText("".join(own_words).strip(), "\n".join(notes))
