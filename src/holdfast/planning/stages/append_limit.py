"""The cap at append: a text too long for an entry of the log goes to a blob, and its ends are said in its place."""

from __future__ import annotations

from holdfast.messages.message import Message, characters, part_text
from holdfast.messages.parts import Part, Text, ToolResult
from holdfast.messages.text.cutting import fingerprint, head_and_tail
from holdfast.planning.settings import HANDLE, SMALL_TEXT, Settings
from holdfast.planning.stages.spill import replaced
from holdfast.state.edits import Blob

_OPENING = "[Content truncated during persistence — "
_NEWLINE = "\n"


def cap(message: Message, settings: Settings) -> tuple[Message, tuple[Blob, ...]]:
    """Return ``message`` with no text over ``append_chars`` characters, and the whole texts, to be stored before it.

    Words of users and results of tools are looked at. The same object comes back where none is too long.
    """
    most = settings.append_chars
    if not most or message.role not in {"user", "tool"} or characters(message) <= most:
        return message, ()
    capped = [_capped(part, settings) for part in message.parts]
    blobs = tuple(blob for _, blob in capped if blob is not None)
    return (Message(message.role, tuple(part for part, _ in capped)), blobs) if blobs else (message, ())


def _capped(part: Part, settings: Settings) -> tuple[Part, Blob | None]:
    """Return ``part`` within the cap, and its text where that was over it and the ends with their notice are not."""
    text = part_text(part)
    if len(text) <= settings.append_chars:
        return part, None
    blob = Blob(fingerprint(text), text)
    short = _ends(blob, settings)
    if len(short) >= len(text):
        return part, None
    return replaced(part, short) if isinstance(part, ToolResult) else Text(short), blob


def is_capped(text: str) -> bool:
    """Return whether ``text`` is what the cap leaves where results are spilled: it names the whole text itself."""
    return len(text) <= SMALL_TEXT and _OPENING in text


def _ends(blob: Blob, settings: Settings) -> str:
    """Return the ends of a text with a notice between them, within the cap unless the notice alone is longer.

    Where the policy spills the ends are those of a preview, and the notice says which lines lie between: what is left
    is never spilled itself, so that its length and handle are those of the whole text.
    """
    if not settings.spill_chars:
        notice = _notice(blob, settings, f"{len(blob.text):,} characters", "")
        head, tail = head_and_tail(blob.text, max(0, settings.append_chars - len(notice) - 2), settings.preview_tail)
        return _joined(head, notice, tail)
    lines = blob.text.count("\n") + 1
    size = f"{len(blob.text):,} characters in {lines:,} lines"
    room = min(settings.append_chars, SMALL_TEXT) - len(_notice(blob, settings, size, f"{lines}-{lines}")) - 2
    head, tail = head_and_tail(blob.text, max(0, min(room, settings.preview_chars)), settings.preview_tail)
    between = f"{head.count(_NEWLINE) + 1}-{lines - tail.count(_NEWLINE)}"
    return _joined(head, _notice(blob, settings, size, between), tail)


def _notice(blob: Blob, settings: Settings, size: str, lines: str) -> str:
    where = f', lines="{lines}"' if lines else ""
    return (
        f"{_OPENING}original exceeded size limit of {settings.append_chars:,} characters; "
        f'{size}; recall(id="{blob.hash[:HANDLE]}"{where}) returns them]'
    )


def _joined(*said: str) -> str:
    return "\n".join([one for one in said if one])
