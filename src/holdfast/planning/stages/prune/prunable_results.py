"""What may be pruned: the results that are shown whole, and the edit that clears one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from msgspec import Struct

from holdfast.messages.message import get_result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.settings import PruneSettings
from holdfast.planning.stages.spill import get_edited_parts, replace_result_text
from holdfast.state.conversation_state import ConversationState, is_protected_part
from holdfast.state.edits import Edit, Span
from holdfast.state.view import apply_edits_to_parts, list_shown_indexes

CLEARED_RESULT_TEXT = "[Old tool result content cleared]"
"""What opencode and Claude Code show in place of a cleared result."""


class ShownResult(Struct, frozen=True):
    """A result that is shown now, where it stands, and its words."""

    message_index: int
    part_index: int
    result: ToolResult
    text: str


def build_prune_filter(settings: PruneSettings) -> Callable[[str], bool]:
    """Return whether results of a tool are pruned, by its name: patterns, upper and lower case alike."""

    def named(tool: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(tool.lower(), pattern.lower()) for pattern in patterns)

    stays, goes = settings.exempt_tools, settings.tools
    return lambda tool: not named(tool, stays) and (not goes or named(tool, goes))


def find_shown_results(state: ConversationState) -> Iterator[ShownResult]:
    """Yield the results as the projection shows them, shortened ones too, newest first; none that an undo brought."""
    for index in reversed(list_shown_indexes(state, state.view.first_kept)):
        message = state.history.messages[index]
        if not message.results or None in get_edited_parts(state, index):
            continue
        parts = apply_edits_to_parts(message, state.view.edits.get(index, ()))
        for place in range(len(parts) - 1, -1, -1):
            part = parts[place]
            if isinstance(part, ToolResult) and not is_protected_part(state, index, place):
                yield ShownResult(index, place, part, get_result_text(part))


def build_clear_edit(shown_result: ShownResult) -> Edit | None:
    """Return the edit that puts a short line in place of a result, or nothing where that frees nothing."""
    saves = estimate_text_tokens(shown_result.text) - estimate_text_tokens(CLEARED_RESULT_TEXT)
    if saves <= 0 or len(CLEARED_RESULT_TEXT) >= len(shown_result.text):
        return None
    why = f"an old result of {len(shown_result.text):,} characters, {len(CLEARED_RESULT_TEXT):,} stay"
    return Edit(
        Span(shown_result.message_index, shown_result.message_index + 1, shown_result.part_index),
        (replace_result_text(shown_result.result, CLEARED_RESULT_TEXT),),
        "prune",
        why,
        saves,
    )
