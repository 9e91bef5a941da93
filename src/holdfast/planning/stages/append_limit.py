"""The cap at append: a text too long for an entry of the log goes to a blob, and its ends are said in its place."""

from __future__ import annotations

from holdfast.messages.message import Message, count_message_chars, get_part_text
from holdfast.messages.parts import Part, Text, ToolResult
from holdfast.messages.text.text_cuts import hash_text, take_both_text_ends
from holdfast.planning.extract.constants import HANDLE_CHARS, MAX_SMALL_TEXT_CHARS
from holdfast.planning.settings import ResultSettings, Settings
from holdfast.planning.stages.spill import replace_result_text
from holdfast.state.edits import Blob

_CAP_NOTICE_OPENING = "[Content truncated during persistence — "
_NEWLINE = "\n"


def cap_message_texts(message: Message, settings: Settings) -> tuple[Message, tuple[Blob, ...]]:
    """Return ``message`` with no text over ``append_chars`` characters, and the whole texts, to be stored before it.

    Words of users and results of tools are looked at. The same object comes back where none is too long.
    """
    results = settings.results
    max_chars = results.append_chars
    if not max_chars or message.role not in {"user", "tool"} or count_message_chars(message) <= max_chars:
        return message, ()
    capped_parts = [_cap_part(part, results) for part in message.parts]
    blobs = tuple(blob for _, blob in capped_parts if blob is not None)
    return (Message(message.role, tuple(part for part, _ in capped_parts)), blobs) if blobs else (message, ())


def _cap_part(part: Part, settings: ResultSettings) -> tuple[Part, Blob | None]:
    """Return ``part`` within the cap, and its text where that was over it and the ends with their notice are not."""
    text = get_part_text(part)
    if len(text) <= settings.append_chars:
        return part, None
    blob = Blob(hash_text(text), text)
    short = _render_capped_text(blob, settings)
    if len(short) >= len(text):
        return part, None
    return replace_result_text(part, short) if isinstance(part, ToolResult) else Text(short), blob


def is_capped_text(text: str) -> bool:
    """Return whether ``text`` is what the cap leaves where results are spilled: it names the whole text itself."""
    return len(text) <= MAX_SMALL_TEXT_CHARS and _CAP_NOTICE_OPENING in text


def _render_capped_text(blob: Blob, settings: ResultSettings) -> str:
    """Return the ends of a text with a notice between them, within the cap unless the notice alone is longer.

    Where the policy spills the ends are those of a preview, and the notice says which lines lie between: what is left
    is never spilled itself, so that its length and handle are those of the whole text.
    """
    if not settings.spill_chars:
        notice = _format_cap_notice(blob, settings, f"{len(blob.text):,} characters", "")
        head, tail = take_both_text_ends(
            blob.text, max(0, settings.append_chars - len(notice) - 2), settings.preview_end_share
        )
        return _join_nonempty_lines(head, notice, tail)
    lines = blob.text.count("\n") + 1
    size = f"{len(blob.text):,} characters in {lines:,} lines"
    room = (
        min(settings.append_chars, MAX_SMALL_TEXT_CHARS)
        - len(_format_cap_notice(blob, settings, size, f"{lines}-{lines}"))
        - 2
    )
    head, tail = take_both_text_ends(blob.text, max(0, min(room, settings.preview_chars)), settings.preview_end_share)
    between = f"{head.count(_NEWLINE) + 1}-{lines - tail.count(_NEWLINE)}"
    return _join_nonempty_lines(head, _format_cap_notice(blob, settings, size, between), tail)


def _format_cap_notice(blob: Blob, settings: ResultSettings, size: str, lines: str) -> str:
    where = f', lines="{lines}"' if lines else ""
    return (
        f"{_CAP_NOTICE_OPENING}original exceeded size limit of {settings.append_chars:,} characters; "
        f'{size}; recall(id="{blob.hash[:HANDLE_CHARS]}"{where}) returns them]'
    )


def _join_nonempty_lines(*texts: str) -> str:
    return "\n".join([text for text in texts if text])
