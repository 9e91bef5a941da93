"""What may be pruned: the results that are shown whole, and the edit that clears one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from msgspec import Struct

from holdfast.messages.message import result_text
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import count
from holdfast.planning.settings import Settings
from holdfast.planning.stages.spill import edited_parts, replaced
from holdfast.state.branch.branch import Branch, is_spared
from holdfast.state.branch.view import replaced_parts, shown_slots
from holdfast.state.edits import Edit, Span

CLEARED = "[Old tool result content cleared]"
"""What opencode and Claude Code show in place of a cleared result."""


class Result(Struct, frozen=True):
    """A result that is shown now, where it stands, and its words."""

    slot: int
    place: int
    result: ToolResult
    text: str


def may_go(settings: Settings) -> Callable[[str], bool]:
    """Return whether results of a tool are pruned, by its name: patterns, upper and lower case alike."""

    def named(tool: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(tool.lower(), pattern.lower()) for pattern in patterns)

    stays, goes = (*settings.prune_exempt, *settings.prune_spared), settings.prune_tools
    return lambda tool: not named(tool, stays) and (not goes or named(tool, goes))


def results_as_shown(branch: Branch) -> Iterator[Result]:
    """Yield the results as the projection shows them, shortened ones too, newest first; none that an undo brought."""
    for index in reversed(shown_slots(branch, branch.keep)):
        message = branch.messages[index]
        if not message.results or None in edited_parts(branch, index):
            continue
        parts = replaced_parts(message, branch.edits.get(index, ()))
        for place in range(len(parts) - 1, -1, -1):
            part = parts[place]
            if isinstance(part, ToolResult) and not is_spared(branch, index, place):
                yield Result(index, place, part, result_text(part))


def cleared(one: Result) -> Edit | None:
    """Return the edit that puts a short line in place of a result, or nothing where that frees nothing."""
    saves = count(one.text) - count(CLEARED)
    if saves <= 0 or len(CLEARED) >= len(one.text):
        return None
    why = f"an old result of {len(one.text):,} characters, {len(CLEARED):,} stay"
    return Edit(Span(one.slot, one.slot + 1, one.place), (replaced(one.result, CLEARED),), "prune", why, saves)
