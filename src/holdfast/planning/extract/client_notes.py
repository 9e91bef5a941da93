"""What a client writes into the user's messages, in tags of its own: notes of the program, and no words of the user.

Those of the first message (the rules of a project, where the work is) are worth quoting, behind the user's own words;
those of later ones were of their moment.
"""

from __future__ import annotations

import re

_NOTE_OPENING = re.compile(
    r"^[ \t]*(<(?:system-reminder|local-command-caveat|local-command-stdout|environment_context)>)",
    re.MULTILINE,
)
"""Claude Code's tags and the one of Codex, which begin a line [M]."""
_LINE_END = re.compile(r"[ \t]*(?:\n|\Z)")


def split_client_notes(text: str) -> tuple[str, str]:
    """Return the words of ``text`` outside of its notes, and those inside.

    A note takes whole lines: what a user only names, or what has no end, is none.
    """
    own, notes, at = list[str](), list[str](), 0
    while (opening := _NOTE_OPENING.search(text, at)) is not None:
        end = opening[1].replace("<", "</")
        stop = text.find(end, opening.end())
        if stop < 0:
            break
        behind = stop + len(end)
        is_note = _LINE_END.match(text, behind) is not None
        own.append(text[at : opening.start() if is_note else behind])
        notes.append(text[opening.end() : stop].strip() if is_note else "")
        at = behind
    return "".join([*own, text[at:]]).strip(), "\n".join(filter(None, notes))
