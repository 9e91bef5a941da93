"""Spilling: the whole text is stored as a blob; a preview or a line stays, with a handle to read the text back.

Stages decide which texts to spill; this module finds the texts that can be spilled and builds their edits. A text that
nothing shorter can replace stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import get_part_text
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN
from holdfast.messages.text.text_cuts import hash_text, take_both_text_ends
from holdfast.planning.builder import PlanBuilder, build_part_edit, sum_saved_tokens
from holdfast.planning.extract.constants import (
    HANDLE_CHARS,
    MAX_JSON_CHARS,
    MAX_SMALL_TEXT_CHARS,
    MIN_REPLACEABLE_CHARS,
    OUTLINE_CHARS_PER_BUDGET_TOKEN,
)
from holdfast.planning.extract.outline import build_text_outline
from holdfast.planning.stages.escape_tags import ESCAPE_RULE, SPILL_TAG, escape_look_alike_tags
from holdfast.planning.stages.multi_text import collect_small_texts, replace_parts_with_line, select_middle_texts
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit


class SpillableText(Struct, frozen=True):
    """A text that the next request shows whole: a user text or a tool result."""

    message_index: int
    part_index: int
    part: Part
    text: str
    """As it is in the log; it is shown with look-alikes of our tag escaped."""
    tokens: int
    """Estimator tokens, as it is shown."""
    escape_savings: int = 0
    """``saves`` of the edit that escapes it: 0, or negative because escaping adds tokens."""
    preview_tokens: int = 0
    """Estimator tokens that its preview may take if that is more than the usual preview; 0 for the usual one."""
    part_indexes: tuple[int, ...] = ()
    """The parts that are replaced together if this stands for the many small texts of one message; else empty."""

    @property
    def all_part_indexes(self) -> tuple[int, ...]:
        """Every part that it is made of."""
        return self.part_indexes or (self.part_index,)

    @property
    def is_result(self) -> bool:
        """Whether it is the text of a tool result."""
        return isinstance(self.part, ToolResult)


def find_spillable_texts(state: ConversationState, indexes: Iterable[int]) -> Iterator[SpillableText]:
    """Yield the texts of the messages at ``indexes`` that are shown whole and are long enough to be replaced.

    Only users and tools have such texts: an answer goes back to the model as it gave it. The small texts of a message
    with many of them come last, as one.
    """
    for index in indexes:
        message = state.history.messages[index]
        edited_parts = get_edited_parts(state, index)
        if message.role not in {"user", "tool"} or None in edited_parts:
            continue
        escape_savings = _get_escape_savings(state, index)
        small_texts = collect_small_texts(message)
        for part_index, part in enumerate(message.parts):
            text = get_part_text(part)
            if part_index in edited_parts or part_index in small_texts or len(text) <= MIN_REPLACEABLE_CHARS:
                continue
            tokens = state.history.sized_messages[index].tokens
            if len(message.parts) > 1:
                # Only then is the size of the message not that of the text; a long text is not counted twice otherwise.
                tokens = estimate_text_tokens(text)
            savings = escape_savings.get(part_index, 0)
            yield SpillableText(
                index,
                part_index,
                part,
                text,
                tokens - savings,
                savings,
            )
        if small_texts and edited_parts.isdisjoint(small_texts):
            joined_text = "\n".join(small_texts.values())
            savings = sum(escape_savings.get(part_index, 0) for part_index in small_texts)
            first_part = next(iter(small_texts))
            yield SpillableText(
                index,
                first_part,
                message.parts[first_part],
                joined_text,
                estimate_text_tokens(joined_text) - savings,
                savings,
                part_indexes=tuple(small_texts),
            )


def _get_escape_savings(state: ConversationState, index: int) -> dict[int | None, int]:
    """Return the ``saves`` of the edits that escape parts of a message, by part."""
    edits = state.view.edits.get(index, ())
    escape_savings: dict[int | None, int] = {}
    for edit in edits:
        if edit.rule == ESCAPE_RULE:
            escape_savings[edit.span.part] = edit.saves
    return escape_savings


def get_edited_parts(state: ConversationState, index: int) -> set[int | None]:
    """Return the parts of a message that recorded edits replaced; None among them stands for the whole message.

    A part that was only escaped is still shown whole and does not count.
    """
    edited_parts: set[int | None] = set()
    for edit in state.view.edits.get(index, ()):
        if edit.rule != ESCAPE_RULE:
            edited_parts.add(edit.span.part)
    return edited_parts


def spill_texts(builder: PlanBuilder, texts: Iterable[SpillableText], rule: str) -> PlanBuilder:
    """Spill ``texts`` by edits of ``rule``, except those that nothing shorter can replace."""
    pairs: list[tuple[Edit, Blob | None]] = []
    for text in sorted(texts, key=lambda text: (text.message_index, text.part_index)):
        pairs += build_text_replacement(builder, text, rule)
    return builder.replace_texts(pairs)


def build_text_replacement(builder: PlanBuilder, spillable: SpillableText, rule: str) -> list[tuple[Edit, Blob | None]]:
    """Return the edits that spill a text with the blobs to store; empty if nothing shorter can replace it."""
    pairs: list[tuple[Edit, Blob | None]]
    if spillable.part_indexes:
        pairs = _drop_middle_texts(builder, spillable, rule)
    else:
        pairs = [build_spill_edit(builder, spillable, rule)]
    return pairs if sum_saved_tokens(pairs) > 0 else []


def _drop_middle_texts(builder: PlanBuilder, spillable: SpillableText, rule: str) -> list[tuple[Edit, Blob | None]]:
    """Return the edits that keep the first and last small texts of a message, as many as fit into a preview."""
    message_index, part_indexes = spillable.message_index, spillable.part_indexes
    parts = builder.state.history.messages[message_index].parts
    usual_tokens = estimate_preview_chars(builder) // CHARS_PER_TOKEN
    max_tokens = max(spillable.preview_tokens, usual_tokens)

    def measure_text(position: int) -> int:
        return estimate_text_tokens(get_part_text(parts[part_indexes[position]]))

    end_share = builder.settings.results.preview_end_share
    middle = select_middle_texts(len(part_indexes), measure_text, max_tokens, end_share)
    return replace_parts_with_line(builder, message_index, part_indexes[middle.start : middle.stop], rule)


def build_spill_edit(builder: PlanBuilder, spillable: SpillableText, rule: str) -> tuple[Edit, Blob]:
    """Return the edit that puts a preview, or a line if a preview saves nothing, in place of a text, and its blob.

    The edit may save nothing, or less, if even the line has no fewer tokens: callers then leave the text alone.
    """
    text = spillable.text
    blob = Blob(hash_text(text), text)
    preview = _find_useful_preview(spillable, blob, builder)
    if preview is not None:
        why = f"{len(text):,} characters stored, a preview of {len(preview):,} is shown"
        edit = build_text_edit(spillable, preview, blob, rule, why)
        if edit.saves > 0:
            return edit, blob
    handle = blob.hash[:HANDLE_CHARS]
    line = f'[{len(text):,} characters left out here; recall(id="{handle}") returns them]'
    why = f"{len(text):,} characters stored, a line of {len(line):,} is shown"
    return build_text_edit(spillable, line, blob, rule, why), blob


def build_text_edit(
    spillable: SpillableText,
    short: str,
    blob: Blob,
    rule: str,
    why: str,
) -> Edit:
    """Return the edit that shows ``short`` in place of a text that is stored as ``blob``."""
    replacement: Part = Text(short)
    if isinstance(spillable.part, ToolResult):
        replacement = replace_result_text(spillable.part, short)
    shown_tokens = estimate_text_tokens(spillable.text) - spillable.escape_savings
    saves = shown_tokens - estimate_text_tokens(short)
    message_index, part_index = spillable.message_index, spillable.part_index
    return build_part_edit(
        message_index,
        part_index,
        replacement,
        rule,
        why,
        saves,
        blob.hash,
    )


def _find_useful_preview(spillable: SpillableText, blob: Blob, builder: PlanBuilder) -> str | None:
    """Return the longest preview that is clearly shorter than its text, or None if no preview is."""
    text = spillable.text
    if len(text) <= MAX_SMALL_TEXT_CHARS:
        return None
    for preview in _generate_previews(spillable, blob, builder):
        # One that saves less than a tenth would cost detail for next to nothing: a line is better then.
        if len(preview) <= 0.9 * len(text):
            return preview
    return None


def _generate_previews(spillable: SpillableText, blob: Blob, builder: PlanBuilder) -> Iterator[str]:
    """Yield previews of a text, the longest first: those within ``preview_tokens``, then the usual one."""
    text = spillable.text
    usual_chars = builder.settings.results.preview_chars
    outline_chars = _compute_outline_chars(builder)
    # The first try assumes that every character has the same tokens. The ends of a text may be far denser than its
    # middle, so a preview that came out too large is tried again a quarter shorter.
    chars = len(text) * spillable.preview_tokens // max(1, spillable.tokens) - outline_chars
    while chars > usual_chars:
        preview = render_preview(text, blob.hash, builder, chars)
        if estimate_text_tokens(preview) <= spillable.preview_tokens:
            yield preview
        chars = chars * 3 // 4
    # A preview longer than its text would save nothing, so a short text gets a preview of four fifths of it.
    max_chars = int(0.8 * len(text))
    chars = usual_chars if usual_chars <= max_chars else max_chars - outline_chars
    yield render_preview(text, blob.hash, builder, chars)


def replace_result_text(result: ToolResult, text: str) -> ToolResult:
    """Return ``result`` with ``text`` in place of its texts; media and parts of unknown kinds stay after it."""
    other_parts = tuple(part for part in result.content if isinstance(part, Media | Opaque))
    return ToolResult(result.call_id, result.name, (Text(text), *other_parts), result.is_error)


def render_preview(
    text: str,
    hash_: str,
    builder: PlanBuilder,
    chars: int = 0,
) -> str:
    """Return the block that stands for a spilled text: its totals and handle, both ends, and an outline of the rest.

    The ends have ``chars`` characters together, or the number in the settings if that is 0. Lines end with a newline
    and nothing else. A line that is cut counts both as shown and as left out, so its number is in both ranges.
    Look-alikes of our own tag in the quoted text are escaped.
    """
    settings = builder.settings.results
    handle = hash_[:HANDLE_CHARS]
    head, tail = take_both_text_ends(text, chars or settings.preview_chars, settings.preview_end_share)
    start = len(head)
    stop = len(text) - len(tail)
    line_count = text.count("\n") + 1
    first = head.count("\n") + 1
    last = line_count - tail.count("\n")
    outline_lines = build_text_outline(
        text,
        _compute_outline_chars(builder),
        first,
        start,
        stop,
    )
    body_lines: list[str] = []
    if head:
        body_lines += [f"Lines 1-{first}:", head]
    body_lines.append(
        f'[{stop - start:,} characters left out here; recall(id="{handle}", lines="{first}-{last}") returns them]'
    )
    if outline_lines:
        body_lines += ["Lines among them, by number:", *outline_lines]
    if tail:
        body_lines += [f"Lines {last}-{line_count}:", tail]
    kind = ' type="json"' if is_json_text(text) else ""
    opening = f'<{SPILL_TAG} id="{handle}" chars="{len(text)}" lines="{line_count}"{kind}>'
    body = escape_look_alike_tags("\n".join(body_lines))
    return "\n".join([opening, body, f"</{SPILL_TAG}>"])


def estimate_preview_chars(builder: PlanBuilder) -> int:
    """Return about how many characters the preview of a long text has, its outline included."""
    return builder.settings.results.preview_chars + _compute_outline_chars(builder)


def _compute_outline_chars(builder: PlanBuilder) -> int:
    """Return the most characters that an outline may have; in a small budget it is shorter than the setting."""
    return min(builder.settings.results.outline_chars, builder.budget.compute_share(OUTLINE_CHARS_PER_BUDGET_TOKEN))


_JSON_START = re.compile(r"[ \t\r\n]*[\[{]")
_RAW_DECODER = Decoder(Raw)


def is_json_text(text: str) -> bool:
    """Return whether ``text`` is one JSON object or array. A long text that is not ASCII is not tried."""
    if not _JSON_START.match(text):
        return False
    # Text beyond ASCII must be encoded first, which holds it in memory twice.
    if not text.isascii() and len(text) > MAX_JSON_CHARS:
        return False
    try:
        # Into Raw: the decoder checks the syntax and builds no values.
        _RAW_DECODER.decode(text if text.isascii() else text.encode())
    except (DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True
