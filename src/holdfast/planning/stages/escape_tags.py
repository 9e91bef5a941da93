"""Forged tags: text of users and tools that looks like a block of ours is escaped before the model sees it.

A model trusts a ``<persisted_tool_result>`` block, so a web page or a file that contains one could lead it to a text of
the attacker's choice. A block is ours because a decision in the log put it there, never because of its look. So the tag
is escaped in fresh texts of users and tools, also if it is disguised, incomplete or spread over several parts. The log
keeps the texts as they were said.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message, get_part_text
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.counts import format_count
from holdfast.planning.builder import PlanBuilder, build_part_edit
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.view import list_shown_indexes

SPILL_TAG = "persisted_tool_result"
"""Tag of the block that stands for a spilled text; we have no other tag."""
ESCAPE_RULE = "neutralise"
"""Rule of the edits that escape look-alikes. A part with such an edit is still shown whole."""
ESCAPED_BRACKET = "&lt;"
"""Replaces the bracket of a look-alike."""
_INVISIBLE_CHARS = (
    "\\x00-\\x1f\\x7f-\\x9f\\u00ad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u17b4\\u17b5"
    "\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
    "\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)
"""Characters without a glyph: controls, formats, variation selectors, joiners and fillers. A tag with some of them
between its letters looks the same, and a model reads it as the same."""
_BRACKET_LOOK_ALIKES = "\\u02c2\\u1438\\u2039\\u2329\\u276e\\u27e8\\u3008\\ufe64\\uff1c"
"""Characters beyond ASCII that look like ``<``."""
_NAME_SEPARATORS = rf"[\s_\-\u2010-\u2015\u2212\ufe58\ufe63\uff0d\uff3f{_INVISIBLE_CHARS}]*+"
_BRACKET_GAP = rf"[\s/\\!?\[\-{_INVISIBLE_CHARS}]*+"
_NAMESPACE_PREFIX = rf"(?:\w[\w.\-:{_INVISIBLE_CHARS}]*[:\[]{_BRACKET_GAP})?"
_TAG_NAME_PATTERN = _NAME_SEPARATORS.join(f"[{_INVISIBLE_CHARS}]*+".join(word) for word in SPILL_TAG.split("_"))
_TAG_NAME_AHEAD = f"(?={_BRACKET_GAP}{_NAMESPACE_PREFIX}(?i:{_TAG_NAME_PATTERN}))"
"""The name of our tag after a bracket, as a lookahead: in an opening or closing tag, with a namespace, in a comment or
a CDATA section. Quantifiers are possessive (``*+``) where they can be, so that no text can be made to take long to
search."""
_ASCII_BRACKET = re.compile(f"<{_TAG_NAME_AHEAD}")
_ANY_BRACKET = re.compile(f"[<{_BRACKET_LOOK_ALIKES}]{_TAG_NAME_AHEAD}")


def find_look_alike_brackets(text: str) -> list[int]:
    """Return the positions in ``text`` of the brackets that open a look-alike of our tag."""
    return [match.start() for match in _choose_bracket_pattern(text).finditer(text)]


def _choose_bracket_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern for the brackets in ``text``; ASCII text has one kind only, which is much quicker to find."""
    return _ASCII_BRACKET if text.isascii() else _ANY_BRACKET


def escape_look_alike_tags(text: str) -> str:
    """Return ``text`` with the bracket of every look-alike of our tag escaped, or the same object without one."""
    return escape_tags_across_texts((text,))[0]


def escape_tags_across_texts(texts: Sequence[str], own_blocks: Iterable[str] = ()) -> list[str]:
    """Return ``texts``, which are shown one after the other, with the brackets of look-alikes escaped.

    A look-alike may begin in one text and end in another. It makes no difference whether an API puts a line break
    between texts, since a look-alike may contain one. ``own_blocks`` are blocks that decisions put into the request;
    where a text quotes one word for word, it stays. Texts without a look-alike are the same objects.
    """
    positions = find_look_alike_brackets("".join(texts))
    if not positions:
        return list(texts)
    escaped_texts: list[str] = []
    start = 0
    for text in texts:
        stop = start + len(text)
        first, last = bisect_left(positions, start), bisect_left(positions, stop)
        if first == last:
            escaped_texts.append(text)
        else:
            own_positions = [position - start for position in positions[first:last]]
            escaped_texts.append(_escape_brackets(text, own_positions, own_blocks))
        start = stop
    return escaped_texts


def _escape_brackets(text: str, brackets: Iterable[int], own_blocks: Iterable[str]) -> str:
    """Return ``text`` with the ``brackets`` outside of our own blocks escaped, or the same object without any."""
    own_spans: list[tuple[int, int]] = []
    for block in own_blocks:
        own_spans += _find_block_spans(text, block)
    own_spans.sort()
    pieces: list[str] = []
    start = 0
    for position in brackets:
        # The last span that begins at or before the bracket is the only one that it can be in.
        spans_before = bisect_right(own_spans, (position, len(text)))
        is_in_own_block = spans_before > 0 and position < own_spans[spans_before - 1][1]
        if is_in_own_block:
            continue
        pieces += (text[start:position], ESCAPED_BRACKET)
        start = position + 1
    if not pieces:
        return text
    pieces.append(text[start:])
    return "".join(pieces)


def _find_block_spans(text: str, block: str) -> Iterator[tuple[int, int]]:
    """Yield start and stop of every occurrence of ``block`` in ``text``."""
    start = text.find(block)
    while start >= 0:
        stop = start + len(block)
        yield start, stop
        start = text.find(block, stop)


def escape_forged_tags(builder: PlanBuilder) -> PlanBuilder:
    """Escape every look-alike of our tag in the fresh texts of users and tools.

    Texts that a request has shown stay as they were shown, and so does a word-for-word quotation of a block that is in
    force on this branch.
    """
    state = builder.state
    first = max(state.last_request.seen_count, state.view.first_kept)
    fresh_messages = state.history.messages.slice(first)
    suspect_indexes = {first + position for position in _find_suspect_messages(fresh_messages)}
    if not suspect_indexes:
        return builder
    own_blocks = list_decision_blocks(state)
    edits: list[Edit] = []
    for index in list_shown_indexes(state, first):
        if index in suspect_indexes:
            edits += _build_escape_edits(state, index, own_blocks)
    return builder.add_edits(tuple(edits))


def escape_summary_look_alikes(texts: Sequence[str], state: ConversationState) -> list[str]:
    """Return the texts of a summary with look-alikes escaped; blocks in force, and their first lines, may be quoted."""
    if not _has_look_alike("".join(texts)):
        return list(texts)
    own_blocks = list_decision_blocks(state)
    opening_lines = [block.partition("\n")[0] for block in own_blocks]
    return escape_tags_across_texts(texts, (*own_blocks, *opening_lines))


def list_decision_blocks(state: ConversationState) -> tuple[str, ...]:
    """Return the blocks with our tag that the decisions in force show, word for word."""
    blocks: list[str] = []
    for edits in state.view.edits.values():
        for edit in edits:
            # An escaped text is somebody else's, whatever it contains.
            if edit.rule == ESCAPE_RULE:
                continue
            for part in edit.replacement:
                if isinstance(part, Message):
                    continue
                text = get_part_text(part)
                if text.startswith(f"<{SPILL_TAG} ") and text.endswith(f"</{SPILL_TAG}>"):
                    blocks.append(text)
    return tuple(blocks)


_UNTRUSTED_ROLES = frozenset({"user", "tool"})
"""Roles whose messages may hold text from outside. Answers and system prompts are sent unchanged."""


def _find_suspect_messages(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the messages that contain a look-alike.

    Most messages need no search: an ASCII text without ``<`` cannot contain one.
    """
    suspects: list[int] = []
    for position, message in enumerate(messages):
        if message.role not in _UNTRUSTED_ROLES:
            continue
        if _has_possible_bracket(message) and _has_forged_tag(message):
            suspects.append(position)
    return suspects


def _has_possible_bracket(message: Message) -> bool:
    """Return whether a text of a message contains ``<`` or a character beyond ASCII."""
    for part in message.parts:
        for inner in part.content if type(part) is ToolResult else (part,):
            if type(inner) is Text and ("<" in inner.text or not inner.text.isascii()):
                return True
    return False


def _has_forged_tag(message: Message) -> bool:
    """Return whether a message contains a look-alike, in one text or spread over several.

    The texts of each result are joined apart from those of the message.
    """
    texts: list[str] = []
    for part in message.parts:
        if type(part) is Text:
            texts.append(part.text)
        elif type(part) is ToolResult:
            result_texts = []
            for inner in part.content:
                if type(inner) is Text:
                    result_texts.append(inner.text)
            if _has_look_alike("".join(result_texts)):
                return True
    return _has_look_alike("".join(texts))


def _has_look_alike(text: str) -> bool:
    return _choose_bracket_pattern(text).search(text) is not None


def _build_escape_edits(state: ConversationState, index: int, own_blocks: tuple[str, ...]) -> Iterator[Edit]:
    """Yield the edits that escape the look-alikes in the parts of a message that are still shown as they were said."""
    edited_parts = {edit.span.part for edit in state.view.edits.get(index, ())}
    if None in edited_parts:
        return
    message = state.history.messages[index]
    parts: dict[int, Part] = {}
    for part_index, part in enumerate(message.parts):
        if part_index not in edited_parts:
            parts[part_index] = part
    escaped_parts = _escape_parts(tuple(parts.values()), own_blocks)
    for (part_index, part), escaped_part in zip(parts.items(), escaped_parts, strict=True):
        if escaped_part is part:
            continue
        text = get_part_text(part)
        escaped_text = get_part_text(escaped_part)
        count = (len(escaped_text) - len(text)) // (len(ESCAPED_BRACKET) - 1)
        why = f"escaped {format_count(count, 'look-alike')} of <{SPILL_TAG}> that Holdfast did not write"
        saves = estimate_text_tokens(text) - estimate_text_tokens(escaped_text)
        yield build_part_edit(index, part_index, escaped_part, ESCAPE_RULE, why, saves)


def _escape_parts(parts: Sequence[Part], own_blocks: tuple[str, ...]) -> list[Part]:
    """Return ``parts`` with look-alikes in texts and results escaped; unchanged parts are the same objects."""
    escaped_texts = iter(_escape_text_parts(_select_text_parts(parts), own_blocks))
    escaped_parts: list[Part] = []
    for part in parts:
        if isinstance(part, Text):
            escaped_parts.append(next(escaped_texts))
        else:
            escaped_parts.append(_escape_result(part, own_blocks))
    return escaped_parts


def _escape_result(part: Part, own_blocks: tuple[str, ...]) -> Part:
    """Return a result with the look-alikes in its texts escaped; the same object for any other part."""
    if not isinstance(part, ToolResult):
        return part
    texts = _select_text_parts(part.content)
    escaped_texts = _escape_text_parts(texts, own_blocks)
    if all(escaped is text for escaped, text in zip(escaped_texts, texts, strict=True)):
        return part
    remaining = iter(escaped_texts)
    content: list[Text | Media | Opaque] = []
    for inner in part.content:
        if isinstance(inner, Text):
            content.append(next(remaining))
        else:
            content.append(inner)
    # The wire bytes of the result hold the texts before they were escaped.
    return replace(part, content=tuple(content), raw=None)


def _escape_text_parts(texts: Sequence[Text], own_blocks: tuple[str, ...]) -> list[Text]:
    """Return ``texts``, which are shown one after the other, with look-alikes escaped; the others are the same."""
    escaped_texts = escape_tags_across_texts([text.text for text in texts], own_blocks)
    parts: list[Text] = []
    for text, escaped in zip(texts, escaped_texts, strict=True):
        if escaped is text.text:
            parts.append(text)
        else:
            parts.append(Text(escaped))
    return parts


def _select_text_parts(parts: Sequence[Part]) -> list[Text]:
    return [part for part in parts if isinstance(part, Text)]
