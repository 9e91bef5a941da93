"""What the prune rules of several policies share: the shown results, the tools that count, the edit that clears one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from msgspec import Struct

from holdfast.messages.message import get_result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.builder import build_part_edit
from holdfast.planning.settings import PruneSettings
from holdfast.planning.stages.spill import get_edited_parts, replace_result_text
from holdfast.state.conversation_state import ConversationState, is_protected_part
from holdfast.state.edits import Edit
from holdfast.state.view import apply_edits_to_parts, list_shown_indexes

CLEARED_RESULT_TEXT = "[Old tool result content cleared]"
"""Placeholder that opencode and Claude Code show for a cleared result, word for word."""


class ShownResult(Struct, frozen=True):
    """A result as the next request shows it, its place and its text."""

    message_index: int
    part_index: int
    result: ToolResult
    text: str


def build_prune_filter(settings: PruneSettings) -> Callable[[str], bool]:
    """Return a function that tells by the name of a tool whether its results may be pruned.

    ``prune.tools`` and ``prune.exempt_tools`` are shell patterns, in upper or lower case.
    """

    def matches_any(tool: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(tool.lower(), pattern.lower()) for pattern in patterns)

    def is_prunable(tool: str) -> bool:
        if matches_any(tool, settings.exempt_tools):
            return False
        return not settings.tools or matches_any(tool, settings.tools)

    return is_prunable


def find_shown_results(state: ConversationState) -> Iterator[ShownResult]:
    """Yield the results that the next request shows, newest first, also those that were shortened.

    Results that an undo restored are left out: they would be taken away again at once.
    """
    for index in reversed(list_shown_indexes(state, state.view.first_kept)):
        message = state.history.messages[index]
        if not message.results or None in get_edited_parts(state, index):
            continue
        parts = apply_edits_to_parts(message, state.view.edits.get(index, ()))
        for part_index in range(len(parts) - 1, -1, -1):
            part = parts[part_index]
            if isinstance(part, ToolResult) and not is_protected_part(state, index, part_index):
                yield ShownResult(index, part_index, part, get_result_text(part))


def build_clear_edit(shown_result: ShownResult) -> Edit | None:
    """Return the edit that puts ``CLEARED_RESULT_TEXT`` in place of a result, or None if that frees nothing."""
    text_chars, placeholder_chars = len(shown_result.text), len(CLEARED_RESULT_TEXT)
    saves = estimate_text_tokens(shown_result.text) - estimate_text_tokens(CLEARED_RESULT_TEXT)
    if saves <= 0 or placeholder_chars >= text_chars:
        return None
    why = f"an old result, cleared from {text_chars:,} to {placeholder_chars:,} characters"
    replacement = replace_result_text(shown_result.result, CLEARED_RESULT_TEXT)
    return build_part_edit(
        shown_result.message_index,
        shown_result.part_index,
        replacement,
        "prune",
        why,
        saves,
    )
