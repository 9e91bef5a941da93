"""Spilling: a text moves to a blob, and a preview or a line stays in its place, with a handle to read it back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.message import get_part_text
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.size.weighted_chars import CHARS_PER_TOKEN
from holdfast.messages.text.text_cuts import hash_text, take_both_text_ends
from holdfast.planning.builder import PlanBuilder
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
from holdfast.state.edits import Blob, Edit, Span


class SpillableText(Struct, frozen=True):
    """A text that the projection shows whole: words of the user, or a result."""

    message_index: int
    part_index: int
    part: Part
    text: str
    """As it was said; it is shown with look-alikes of our tags escaped."""
    tokens: int
    """Estimator tokens, as it is shown."""
    escape_savings: int = 0
    """What escaping saved: 0, or less where it added some."""
    preview_tokens: int = 0
    """Estimator tokens that its preview may take where that is more than the usual one; 0 = no more."""
    part_indexes: tuple[int, ...] = ()
    """The parts that it is made of where these give way together: texts of a message that has many."""

    @property
    def all_part_indexes(self) -> tuple[int, ...]:
        """The parts that say it."""
        return self.part_indexes or (self.part_index,)

    @property
    def is_result(self) -> bool:
        """Whether a tool said it."""
        return isinstance(self.part, ToolResult)


def find_spillable_texts(state: ConversationState, slots: Iterable[int]) -> Iterator[SpillableText]:
    """Yield the texts of ``slots`` that are shown whole and long enough to give way to something shorter."""
    for index in slots:
        message, edited_places = state.history.messages[index], get_edited_parts(state, index)
        if message.role not in {"user", "tool"} or None in edited_places:
            continue
        alone = len(message.parts) == 1
        escape_savings = {
            edit.span.part: edit.saves for edit in state.view.edits.get(index, ()) if edit.rule == ESCAPE_RULE
        }
        small = collect_small_texts(message)
        for place, part in enumerate(message.parts):
            text = get_part_text(part)
            if place not in edited_places and len(text) > MIN_REPLACEABLE_CHARS and place not in small:
                size, saved_tokens = (
                    state.history.sized_messages[index].tokens if alone else estimate_text_tokens(text),
                    escape_savings.get(place, 0),
                )
                yield SpillableText(index, place, part, text, size - saved_tokens, saved_tokens)
        if small and edited_places.isdisjoint(small):
            text, saved_tokens = "\n".join(small.values()), sum(escape_savings.get(place, 0) for place in small)
            first = next(iter(small))
            yield SpillableText(
                index,
                first,
                message.parts[first],
                text,
                estimate_text_tokens(text) - saved_tokens,
                saved_tokens,
                part_indexes=tuple(small),
            )


def get_edited_parts(state: ConversationState, index: int) -> set[int | None]:
    """Return the parts of a slot that gave way to a recorded edit; nothing among them is the whole slot."""
    return {edit.span.part for edit in state.view.edits.get(index, ()) if edit.rule != ESCAPE_RULE}


def spill_texts(builder: PlanBuilder, texts: Iterable[SpillableText], rule: str) -> PlanBuilder:
    """Return the draft with ``texts`` spilled, those left out for which nothing shorter could stay."""
    every = sorted(texts, key=lambda text: (text.message_index, text.part_index))
    return builder.replace_texts(pair for text in every for pair in build_text_replacement(builder, text, rule))


def build_text_replacement(builder: PlanBuilder, spillable: SpillableText, rule: str) -> list[tuple[Edit, Blob | None]]:
    """Return the edits by which a text gives way, with what is to be stored; none where nothing shorter could stay."""
    pairs = (
        _drop_middle_texts(builder, spillable, rule)
        if spillable.part_indexes
        else [build_spill_edit(builder, spillable, rule)]
    )
    return [*pairs] if sum(edit.saves for edit, _ in pairs) > 0 else []


def _drop_middle_texts(builder: PlanBuilder, spillable: SpillableText, rule: str) -> list[tuple[Edit, Blob | None]]:
    """Return the edits that leave as many texts of a message, from its start and its end, as a preview may have."""
    parts, max_tokens = (
        builder.state.history.messages[spillable.message_index].parts,
        max(spillable.preview_tokens, estimate_preview_chars(builder) // CHARS_PER_TOKEN),
    )

    def size(at: int) -> int:
        return estimate_text_tokens(get_part_text(parts[spillable.part_indexes[at]]))

    middle_range = select_middle_texts(
        len(spillable.part_indexes), size, max_tokens, builder.settings.results.preview_end_share
    )
    return replace_parts_with_line(
        builder, spillable.message_index, spillable.part_indexes[middle_range.start : middle_range.stop], rule
    )


def build_spill_edit(builder: PlanBuilder, spillable: SpillableText, rule: str) -> tuple[Edit, Blob]:
    """Return the edit that puts a preview in place of a text, or a line where a preview would be hardly shorter.

    It saves nothing where even the line is no shorter in tokens: then the text had better stay.
    """
    blob = Blob(hash_text(spillable.text), spillable.text)
    edits = (
        build_text_edit(
            spillable, short, blob, rule, f"{len(spillable.text):,} characters spilled, {len(short):,} stay"
        )
        for short in _list_replacements(spillable, blob, builder)
    )
    best = next(edits)
    return (best if best.saves > 0 else next(edits, best)), blob


def build_text_edit(spillable: SpillableText, short: str, blob: Blob, rule: str, why: str) -> Edit:
    """Return the edit that shows ``short`` in place of a text that is stored as ``blob``."""
    replacement = replace_result_text(spillable.part, short) if isinstance(spillable.part, ToolResult) else Text(short)
    saves = estimate_text_tokens(spillable.text) - spillable.escape_savings - estimate_text_tokens(short)
    return Edit(
        Span(spillable.message_index, spillable.message_index + 1, spillable.part_index),
        (replacement,),
        rule,
        why,
        saves,
        blob.hash,
    )


def _list_replacements(spillable: SpillableText, blob: Blob, builder: PlanBuilder) -> Iterator[str]:
    """Yield what may stand for a text, the best first: a preview if that is shorter by a tenth, then a line."""
    if len(spillable.text) > MAX_SMALL_TEXT_CHARS:
        yield from islice(
            (
                block
                for block in _generate_previews(spillable, blob, builder)
                if len(block) <= 0.9 * len(spillable.text)
            ),
            1,
        )
    yield f'[{len(spillable.text):,} characters left out here; recall(id="{blob.hash[:HANDLE_CHARS]}") returns them]'


def _generate_previews(spillable: SpillableText, blob: Blob, builder: PlanBuilder) -> Iterator[str]:
    """Yield previews of a text, the longest first: those that its room takes, then the usual one."""
    settings = builder.settings
    chars = len(spillable.text) * spillable.preview_tokens // max(1, spillable.tokens) - _compute_outline_chars(builder)
    while chars > settings.results.preview_chars:
        block = render_preview(spillable.text, blob.hash, builder, chars)
        if estimate_text_tokens(block) <= spillable.preview_tokens:
            yield block
        chars = chars * 3 // 4
    max_chars = int(0.8 * len(spillable.text))
    is_long = settings.results.preview_chars <= max_chars
    yield render_preview(
        spillable.text,
        blob.hash,
        builder,
        settings.results.preview_chars if is_long else max_chars - _compute_outline_chars(builder),
    )


def replace_result_text(result: ToolResult, text: str) -> ToolResult:
    """Return ``result`` with ``text`` in place of its words; media and what we do not know stay."""
    other_parts = tuple(part for part in result.content if isinstance(part, Media | Opaque))
    return ToolResult(result.call_id, result.name, (Text(text), *other_parts), result.is_error)


def render_preview(text: str, hash_: str, builder: PlanBuilder, chars: int = 0) -> str:
    """Return the block that stands for a spilled text: totals, the handle, its ends, and an outline of the rest.

    The ends have ``chars`` characters together, by default those that the settings say. Lines end with a newline and
    nothing else; a line that is cut counts as shown and as left out. Of what it quotes, look-alikes of its own tag are
    escaped.
    """
    settings, handle = builder.settings, hash_[:HANDLE_CHARS]
    head, tail = take_both_text_ends(text, chars or settings.results.preview_chars, settings.results.preview_end_share)
    start, stop = len(head), len(text) - len(tail)
    lines = text.count("\n") + 1
    first, last = head.count("\n") + 1, lines - tail.count("\n")
    outline_lines = build_text_outline(text, _compute_outline_chars(builder), first, start, stop)
    body_lines = [
        *([f"Lines 1-{first}:", head] if head else []),
        f'[{stop - start:,} characters left out here; recall(id="{handle}", lines="{first}-{last}") returns them]',
        *(["Lines among them, by number:", *outline_lines] if outline_lines else []),
        *([f"Lines {last}-{lines}:", tail] if tail else []),
    ]
    kind = ' type="json"' if is_json_text(text) else ""
    opening = f'<{SPILL_TAG} id="{handle}" chars="{len(text)}" lines="{lines}"{kind}>'
    return "\n".join([opening, escape_look_alike_tags("\n".join(body_lines)), f"</{SPILL_TAG}>"])


def estimate_preview_chars(builder: PlanBuilder) -> int:
    """Return about how many characters the preview of a long text has."""
    return builder.settings.results.preview_chars + _compute_outline_chars(builder)


def _compute_outline_chars(builder: PlanBuilder) -> int:
    """Return the characters that an outline may have."""
    return min(builder.settings.results.outline_chars, builder.budget.compute_share(OUTLINE_CHARS_PER_BUDGET_TOKEN))


_JSON_START = re.compile(r"[ \t\r\n]*[\[{]")
_RAW_DECODER = Decoder(Raw)


def is_json_text(text: str) -> bool:
    """Return whether ``text`` is a JSON object or array; nothing is made of it."""
    if not _JSON_START.match(text) or not (text.isascii() or len(text) <= MAX_JSON_CHARS):
        return False
    try:
        _RAW_DECODER.decode(text if text.isascii() else text.encode())
    except (DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True
