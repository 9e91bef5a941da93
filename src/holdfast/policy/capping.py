"""The cap at append: a text too long for an entry of the log goes to a blob, and its ends are said in its place."""

from __future__ import annotations

from holdfast.model.edits import Blob
from holdfast.model.messages import Message, result_text
from holdfast.model.parts import Part, Text, ToolResult
from holdfast.policy.settings import HANDLE, Settings
from holdfast.policy.spill import replaced
from holdfast.view.text import fingerprint, head_and_tail


def cap(message: Message, settings: Settings) -> tuple[Message, tuple[Blob, ...]]:
    """Return ``message`` with no text over ``append_chars`` characters, and the whole texts, to be stored before it.

    Words of users and results of tools are looked at. The same object comes back where none is too long.
    """
    if not settings.append_chars or message.role not in {"user", "tool"}:
        return message, ()
    capped = [_capped(part, settings) for part in message.parts]
    blobs = tuple(blob for _, blob in capped if blob is not None)
    return (Message(message.role, tuple(part for part, _ in capped)), blobs) if blobs else (message, ())


def _capped(part: Part, settings: Settings) -> tuple[Part, Blob | None]:
    """Return ``part`` within the cap, and its text where that was over it and the ends with their notice are not."""
    text = part.text if isinstance(part, Text) else result_text(part) if isinstance(part, ToolResult) else ""
    if len(text) <= settings.append_chars:
        return part, None
    blob = Blob(fingerprint(text), text)
    short = _ends(blob, settings)
    if len(short) >= len(text):
        return part, None
    return replaced(part, short) if isinstance(part, ToolResult) else Text(short), blob


def _ends(blob: Blob, settings: Settings) -> str:
    """Return the ends of a text with a notice between them, within the cap unless the notice alone is longer."""
    most = settings.append_chars
    notice = (
        f"[Content truncated during persistence — original exceeded size limit of {most:,} characters; "
        f'{len(blob.text):,} characters; recall(id="{blob.hash[:HANDLE]}") returns them]'
    )
    head, tail = head_and_tail(blob.text, max(0, most - len(notice) - 2), settings.preview_tail)
    return "\n".join([said for said in (head, notice, tail) if said])
