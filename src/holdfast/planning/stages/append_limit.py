"""The limit at append: a text too long for an entry of the log is stored as a blob, and a cut text is appended.

It bounds the log, not the request: without it one pasted dump would make an entry of a gigabyte, which every reader of
the log would load.
"""

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
    """Return ``message`` with no text over ``results.append_chars`` characters, and the blobs of the whole texts.

    The blobs must be stored before the message is appended. Only user texts and tool results are cut; an answer goes
    back to the model as it gave it. The same object is returned if no text is too long.
    """
    results = settings.results
    max_chars = results.append_chars
    if not max_chars or message.role not in {"user", "tool"} or count_message_chars(message) <= max_chars:
        return message, ()
    parts: list[Part] = []
    blobs: list[Blob] = []
    for part in message.parts:
        capped_part, blob = _cap_part(part, results)
        parts.append(capped_part)
        if blob is not None:
            blobs.append(blob)
    if not blobs:
        return message, ()
    return Message(message.role, tuple(parts)), tuple(blobs)


def _cap_part(part: Part, settings: ResultSettings) -> tuple[Part, Blob | None]:
    """Return ``part`` within the limit, and the blob of its text if it was cut.

    A text just over a tiny limit stays: both ends with their notice would be longer.
    """
    text = get_part_text(part)
    if len(text) <= settings.append_chars:
        return part, None
    blob = Blob(hash_text(text), text)
    short_text = _render_capped_text(blob, settings)
    if len(short_text) >= len(text):
        return part, None
    if isinstance(part, ToolResult):
        return replace_result_text(part, short_text), blob
    return Text(short_text), blob


def is_capped_text(text: str) -> bool:
    """Return whether ``text`` was cut at append under a policy that spills results.

    Such a text has the only handle of the whole text, so no later stage may replace it.
    """
    return len(text) <= MAX_SMALL_TEXT_CHARS and _CAP_NOTICE_OPENING in text


def _render_capped_text(blob: Blob, settings: ResultSettings) -> str:
    """Return both ends of a text with a notice between them, within the limit unless the notice alone is longer.

    If the policy spills results, the ends are as short as those of a preview, and the notice names the lines between
    them. The cut text is then short enough never to be spilled itself: a second handle would lead to the cut text and
    hide the one that leads to the whole.
    """
    if not settings.spill_chars:
        notice = _format_cap_notice(blob, settings, f"{len(blob.text):,} characters", "")
        max_chars = settings.append_chars - len(notice) - len(_NEWLINE) * 2
        head, tail = take_both_text_ends(blob.text, max(0, max_chars), settings.preview_end_share)
        return _join_nonempty_lines(head, notice, tail)
    line_count = blob.text.count(_NEWLINE) + 1
    size = f"{len(blob.text):,} characters in {line_count:,} lines"
    # The longest notice there can be; the real one has smaller line numbers.
    longest_notice = _format_cap_notice(blob, settings, size, f"{line_count}-{line_count}")
    max_chars = min(settings.append_chars, MAX_SMALL_TEXT_CHARS) - len(longest_notice) - len(_NEWLINE) * 2
    max_chars = max(0, min(max_chars, settings.preview_chars))
    head, tail = take_both_text_ends(blob.text, max_chars, settings.preview_end_share)
    first_line = head.count(_NEWLINE) + 1
    last_line = line_count - tail.count(_NEWLINE)
    notice = _format_cap_notice(blob, settings, size, f"{first_line}-{last_line}")
    return _join_nonempty_lines(head, notice, tail)


def _format_cap_notice(
    blob: Blob,
    settings: ResultSettings,
    size: str,
    lines: str,
) -> str:
    line_range = f', lines="{lines}"' if lines else ""
    return (
        f"{_CAP_NOTICE_OPENING}original exceeded size limit of {settings.append_chars:,} characters; "
        f'{size}; recall(id="{blob.hash[:HANDLE_CHARS]}"{line_range}) returns them]'
    )


def _join_nonempty_lines(*texts: str) -> str:
    return "\n".join([text for text in texts if text])
