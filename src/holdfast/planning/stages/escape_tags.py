"""Nothing forged: what looks like a tag of ours in somebody else's words is made harmless.

A block of ours is true because a decision in the log put it there, never because of its look. So fresh words of users
and tools that hold its tag, whole or broken or spread over parts, are shown with the tag escaped; the log keeps them as
they were said.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message, get_part_text
from holdfast.messages.parts import Part, Text, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.builder import PlanBuilder
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.view import list_shown_indexes

SPILL_TAG = "persisted_tool_result"
"""The tag of the block that stands for a spilled text; no other tag is ours."""
ESCAPE_RULE = "neutralise"
"""Rule of the edits that escape look-alikes: a part that has such an edit is still shown whole."""
ESCAPED_BRACKET = "&lt;"
"""What stands for the bracket of a look-alike."""
_INVISIBLE_CHARS = (
    "\\x00-\\x1f\\x7f-\\x9f\\u00ad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u17b4\\u17b5"
    "\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
    "\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)
"""What cannot be seen: controls, formats, selectors of variants, joiners and fillers."""
_BRACKET_LOOK_ALIKES = "\\u02c2\\u1438\\u2039\\u2329\\u276e\\u27e8\\u3008\\ufe64\\uff1c"
"""What looks like the bracket beyond ASCII."""
_NAME_SEPARATORS = rf"[\s_\-\u2010-\u2015\u2212\ufe58\ufe63\uff0d\uff3f{_INVISIBLE_CHARS}]*+"
_BRACKET_GAP = rf"[\s/\\!?\[\-{_INVISIBLE_CHARS}]*+"
_NAMESPACE_PREFIX = rf"(?:\w[\w.\-:{_INVISIBLE_CHARS}]*[:\[]{_BRACKET_GAP})?"
_TAG_NAME_PATTERN = _NAME_SEPARATORS.join(f"[{_INVISIBLE_CHARS}]*+".join(word) for word in SPILL_TAG.split("_"))
_TAG_NAME_AHEAD = f"(?={_BRACKET_GAP}{_NAMESPACE_PREFIX}(?i:{_TAG_NAME_PATTERN}))"
"""Our tag's name behind its bracket: opening, closing or neither, also behind the name of a space or in a section."""
_ASCII_BRACKET, _ANY_BRACKET = (
    re.compile(f"<{_TAG_NAME_AHEAD}"),
    re.compile(f"[<{_BRACKET_LOOK_ALIKES}]{_TAG_NAME_AHEAD}"),
)


def find_look_alike_brackets(text: str) -> list[int]:
    """Return where in ``text`` the brackets of look-alikes of our tag are."""
    return [match.start() for match in _choose_bracket_pattern(text).finditer(text)]


def _choose_bracket_pattern(text: str) -> re.Pattern[str]:
    """Return what finds the brackets in ``text``: where all is ASCII there is one to look for, which is quick."""
    return _ASCII_BRACKET if text.isascii() else _ANY_BRACKET


def escape_look_alike_tags(text: str) -> str:
    """Return ``text`` with the bracket of every look-alike of our tag escaped; the same object where there is none."""
    return escape_tags_across_texts((text,))[0]


def escape_tags_across_texts(texts: Sequence[str], own_blocks: Iterable[str] = ()) -> list[str]:
    """Return ``texts``, shown one behind the other, with the brackets of look-alikes escaped, in whichever they are.

    Whether APIs put a line end between them or nothing makes no difference: a look-alike may have one anywhere.
    ``own_blocks`` is what decisions put there: word for word it stays as it is.
    """
    bracket_positions = find_look_alike_brackets("".join(texts))
    if not bracket_positions:
        return list(texts)
    escaped_texts: list[str] = []
    start = 0
    for text in texts:
        stop = start + len(text)
        text_positions = [
            at - start
            for at in bracket_positions[bisect_left(bracket_positions, start) : bisect_left(bracket_positions, stop)]
        ]
        escaped_texts.append(_escape_brackets(text, text_positions, own_blocks) if text_positions else text)
        start = stop
    return escaped_texts


def _escape_brackets(text: str, brackets: Iterable[int], own_blocks: Iterable[str]) -> str:
    """Return ``text`` with its ``brackets`` escaped but those within what is ours; the same object where all are."""
    spans = sorted(span for block in own_blocks for span in _find_block_spans(text, block))
    pieces: list[str] = []
    start = 0
    for at in brackets:
        behind = bisect_right(spans, (at, len(text)))
        if not behind or at >= spans[behind - 1][1]:
            pieces += (text[start:at], ESCAPED_BRACKET)
            start = at + 1
    return "".join([*pieces, text[start:]]) if pieces else text


def _find_block_spans(text: str, block: str) -> Iterator[tuple[int, int]]:
    """Yield where ``block`` stands in ``text``."""
    at = text.find(block)
    while at >= 0:
        yield at, at + len(block)
        at = text.find(block, at + len(block))


def escape_forged_tags(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with every look-alike of our tag escaped in what users and tools newly said.

    What was seen stays as it was seen, and so does what is word for word a block in force on this branch.
    """
    state, first = builder.state, max(builder.state.last_request.seen_count, builder.state.view.first_kept)
    suspects = {first + at for at in _find_suspect_messages(state.history.messages.slice(first))}
    if not suspects:
        return builder
    own_blocks, visible_indexes = list_decision_blocks(state), list_shown_indexes(state, first)
    return builder.add_edits(
        tuple([edit for at in visible_indexes if at in suspects for edit in _build_escape_edits(state, at, own_blocks)])
    )


def escape_summary_look_alikes(texts: Sequence[str], state: ConversationState) -> list[str]:
    """Return the texts of a summary of ``state`` with look-alikes escaped; blocks in force may be quoted from."""
    if not _has_look_alike("".join(texts)):
        return list(texts)
    own_blocks = list_decision_blocks(state)
    return escape_tags_across_texts(texts, (*own_blocks, *(block.partition("\n")[0] for block in own_blocks)))


def list_decision_blocks(state: ConversationState) -> tuple[str, ...]:
    """Return the blocks that decisions in force show, word for word."""
    words = [
        get_part_text(part)
        for edits in state.view.edits.values()
        for edit in edits
        for part in edit.replacement
        if edit.rule != ESCAPE_RULE and not isinstance(part, Message)
    ]
    return tuple([text for text in words if text.startswith(f"<{SPILL_TAG} ") and text.endswith(f"</{SPILL_TAG}>")])


_UNTRUSTED_ROLES = frozenset({"user", "tool"})
"""Who may say what is not ours."""


def _find_suspect_messages(messages: Sequence[Message]) -> list[int]:
    """Return which messages hold a look-alike, of those who may say what is not ours.

    Where all is ASCII and no bracket is, none is looked for.
    """
    looked_at = {
        at: message
        for at, message in enumerate(messages)
        if message.role in _UNTRUSTED_ROLES
        for part in message.parts
        for inner in (part.content if type(part) is ToolResult else (part,))
        if type(inner) is Text and ("<" in inner.text or not inner.text.isascii())
    }
    return [at for at, message in looked_at.items() if _has_forged_tag(message)]


def _has_forged_tag(message: Message) -> bool:
    """Return whether a message as it was said holds a look-alike, be it spread over its parts."""
    texts = []
    for part in message.parts:
        if type(part) is Text:
            texts.append(part.text)
        elif type(part) is ToolResult and _has_look_alike(
            "".join([inner.text for inner in part.content if type(inner) is Text])
        ):
            return True
    return _has_look_alike("".join(texts))


def _has_look_alike(text: str) -> bool:
    return _choose_bracket_pattern(text).search(text) is not None


def _build_escape_edits(state: ConversationState, index: int, own_blocks: tuple[str, ...]) -> Iterator[Edit]:
    """Yield the edits that escape the look-alikes in what a slot shows as it was said; none where every one is ours."""
    edited_places = {edit.span.part for edit in state.view.edits.get(index, ())}
    parts = {
        place: part for place, part in enumerate(state.history.messages[index].parts) if place not in edited_places
    }
    if None in edited_places:
        return
    for place, new in zip(parts, _escape_parts(tuple(parts.values()), own_blocks), strict=True):
        if new is not parts[place]:
            old, words = get_part_text(parts[place]), get_part_text(new)
            number = (len(words) - len(old)) // (len(ESCAPED_BRACKET) - 1)
            why = f"{number} look-alikes of <{SPILL_TAG}> escaped: no decision put them there"
            yield Edit(
                Span(index, index + 1, place),
                (new,),
                ESCAPE_RULE,
                why,
                estimate_text_tokens(old) - estimate_text_tokens(words),
            )


def _escape_parts(parts: Sequence[Part], own_blocks: tuple[str, ...]) -> list[Part]:
    """Return ``parts`` with look-alikes in their texts, and in those of each result, escaped; others are the same."""
    escaped_texts = iter(_escape_text_parts(_select_text_parts(parts), own_blocks))
    return [next(escaped_texts) if isinstance(part, Text) else _escape_result(part, own_blocks) for part in parts]


def _escape_result(part: Part, own_blocks: tuple[str, ...]) -> Part:
    """Return a result with the look-alikes in its texts escaped; the same where there is none, as of any other part."""
    if not isinstance(part, ToolResult):
        return part
    old = _select_text_parts(part.content)
    new = _escape_text_parts(old, own_blocks)
    if all(text is was for text, was in zip(new, old, strict=True)):
        return part
    escaped_texts = iter(new)
    content = tuple([next(escaped_texts) if isinstance(inner, Text) else inner for inner in part.content])
    return replace(part, content=content, raw=None)


def _escape_text_parts(texts: Sequence[Text], own_blocks: tuple[str, ...]) -> list[Text]:
    """Return ``texts``, shown one behind the other, with look-alikes escaped; those without one are the same."""
    escaped_texts = escape_tags_across_texts([text.text for text in texts], own_blocks)
    return [text if new is text.text else Text(new) for text, new in zip(texts, escaped_texts, strict=True)]


def _select_text_parts(parts: Sequence[Part]) -> list[Text]:
    return [part for part in parts if isinstance(part, Text)]
