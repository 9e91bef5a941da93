"""Changes that keep a rule better than to take out what breaks it: the smallest value that is taken, or what was meant.

Each gives new values by their places, nothing where it knows none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from msgspec import Raw, Struct

from holdfast.messages.message import format_part_placeholder
from holdfast.messages.parts import Media
from holdfast.messages.size.image_size import read_image_size
from holdfast.normalize.parts import encode_wire_tool_name
from holdfast.providers.anthropic.models import MAX_PIXELS_FEW_IMAGES, get_claude_traits
from holdfast.providers.anthropic.rules.block_kinds import FIELDS_BY_BLOCK_KIND
from holdfast.providers.common.json.json_path import (
    JsonTree,
    PathStep,
    PathSteps,
    get_json_first_char,
    replace_json_at_paths,
)
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.common.tool_names import map_invalid_tool_names
from holdfast.providers.fix.fix_context import FixContext

Replacements: TypeAlias = Mapping[PathSteps, bytes | None]
_MAX_CACHE_BREAKPOINTS = 4
"""Cache breakpoints that a request of the Messages API may have."""
_MIN_THINKING_BUDGET = 1024
"""Tokens of the smallest budget for thinking."""


class RuleReplacement(Struct, frozen=True):
    """A change that keeps a rule, and what is told of it where its values do not tell themselves."""

    find_changes: Callable[[JsonTree, FixContext, PathSteps], Replacements]
    description: str = ""
    rank_path: Callable[[JsonTree, PathSteps], int] | None = None
    """Where not all that breaks the rule must go, which goes first: the least, and of these the first."""


def get_path_ranking(rule: str) -> Callable[[JsonTree, PathSteps], int] | None:
    """Return what tells which of the places that break ``rule`` go first; nothing where all of them must."""
    replacement = _REPLACEMENTS_BY_RULE.get(rule)
    return None if replacement is None else replacement.rank_path


def find_replacement(rule: str, tree: JsonTree, work: FixContext, steps: PathSteps) -> tuple[Replacements, str]:
    """Return what keeps ``rule``, broken at ``steps``, better than nothing there, and how it is told; maybe nothing."""
    replacement = _REPLACEMENTS_BY_RULE.get(rule)
    changes = {} if replacement is None else replacement.find_changes(tree, work, steps)
    there = {place: value for place, value in changes.items() if tree.get_raw(place) is not None}
    return there, "" if replacement is None else replacement.description


def _replace_thinking_budget(tree: JsonTree, _work: FixContext, steps: PathSteps) -> Replacements:
    """Return thinking with the least budget, or with one that leaves as much under ``max_tokens``, if there is room."""
    max_tokens = read_whole_number(tree.get_raw(("max_tokens",)))
    budget = (
        _MIN_THINKING_BUDGET
        if read_whole_number(tree.get_raw(steps)) < _MIN_THINKING_BUDGET
        else max(_MIN_THINKING_BUDGET, max_tokens - _MIN_THINKING_BUDGET)
    )
    return {("thinking", "budget_tokens"): str(budget).encode()} if max_tokens > _MIN_THINKING_BUDGET else {}


def read_whole_number(raw: Raw | None) -> int:
    """Return a JSON value as a whole number, 0 for what is none."""
    data = b"" if raw is None else bytes(raw)
    return int(data) if data.isdigit() and len(data) < 16 else 0


def _replace_thinking_mode(_tree: JsonTree, work: FixContext, _steps: PathSteps) -> Replacements:
    """Return the kind of thinking that a model takes instead, if it takes the adaptive one."""
    model_traits = get_claude_traits(work.model)
    return (
        {("thinking",): b'{"type":"adaptive"}'} if model_traits is not None and model_traits.adaptive_thinking else {}
    )


def _move_edit_first(tree: JsonTree, _work: FixContext, steps: PathSteps) -> Replacements:
    """Return the context edits with the one at ``steps`` in front."""
    raws = read_json_items(tree.get_raw(steps[:2]))
    place = steps[2] if len(steps) > 2 else None
    if not isinstance(place, int) or place >= len(raws):
        return {}
    return {steps[:2]: encode_json([raws[place], *raws[:place], *raws[place + 1 :]])}


def _drop_unknown_fields(tree: JsonTree, _work: FixContext, steps: PathSteps) -> Replacements:
    """Return a block without the fields that no block of its kind has."""
    fields = tree.get_children(steps)
    allowed = FIELDS_BY_BLOCK_KIND.get(read_json_text(fields.get("type")))
    return {(*steps, key): None for key in fields if key not in allowed} if allowed is not None else {}


def _replace_tool_name(tree: JsonTree, work: FixContext, steps: PathSteps) -> Replacements:
    """Return a tool, and the choice of it, under the name that its calls get here, unless another tool has that."""
    name = read_json_text(tree.get_raw(steps)) if steps[-1] == "name" else ""
    new = map_invalid_tool_names(
        (read_json_text(tree.get_raw(place)) for place in _iter_declared_name_paths(tree)), work.dialect
    ).get(name, "")
    if not name.strip() or new != encode_wire_tool_name(name, work.dialect):
        return {}
    return {
        place: encode_json(new)
        for place in (steps, *_iter_chosen_name_paths(tree))
        if read_json_text(tree.get_raw(place)) == name
    }


def _iter_declared_name_paths(tree: JsonTree) -> Iterator[PathSteps]:
    """Yield where some API names the tools that it is offered."""
    for index in tree.get_children(("tools",)):
        yield ("tools", index, "name")
        yield ("tools", index, "function", "name")
        for key in ("functionDeclarations", "function_declarations"):
            for place in tree.get_children(("tools", index, key)):
                yield ("tools", index, key, place, "name")


def _iter_chosen_name_paths(tree: JsonTree) -> Iterator[PathSteps]:
    """Yield where some API names the tools that may or must be called."""
    yield ("tool_choice", "name")
    yield ("tool_choice", "function", "name")
    for config in (("toolConfig", "functionCallingConfig"), ("tool_config", "function_calling_config")):
        for key in ("allowedFunctionNames", "allowed_function_names"):
            for index in tree.get_children((*config, key)):
                yield (*config, key, index)


def _replace_name_or_drop_empty_tools(tree: JsonTree, work: FixContext, steps: PathSteps) -> Replacements:
    """Return the tools without a list that is empty, or with a name that fits."""
    return {steps: None} if bytes(tree.get_raw(steps) or b"") == b"[]" else _replace_tool_name(tree, work, steps)


def _drop_duplicate_or_replace_name(tree: JsonTree, work: FixContext, steps: PathSteps) -> Replacements:
    """Return the tools without one that stands there twice, or with a name that fits."""
    return _drop_duplicate_tool(tree, work, steps) or _replace_tool_name(tree, work, steps)


def _drop_duplicate_tool(tree: JsonTree, _work: FixContext, steps: PathSteps) -> Replacements:
    """Return the tools without one that stands there, just the same, before."""
    tool = steps[:-1]
    place = tool[-1] if tool else None
    raw_tool = tree.get_raw(tool)
    before = [tree.get_raw((*tool[:-1], index)) for index in range(place)] if isinstance(place, int) else []
    return {tool: None} if raw_tool is not None and raw_tool in before else {}


def _move_newest_compaction_first(tree: JsonTree, _work: FixContext, _steps: PathSteps) -> Replacements:
    """Return the messages with the newest block that stands for older ones before all else, and no older such block."""
    spots: list[PathSteps] = []
    for at in tree.get_children(("messages",)):
        content: PathSteps = ("messages", at, "content")
        spots += [
            (*content, place)
            for place in tree.get_children(content)
            if _is_compaction_with_text(tree.get_children((*content, place)))
        ]
    newest = tree.get_raw(spots[-1]) if spots else None
    if newest is None:
        return {}
    emptied_paths = {
        spot[:2] for spot in spots if all((*spot[:3], place) in spots for place in tree.get_children(spot[:3]))
    }
    stripped_body = replace_json_at_paths(tree.raw, dict.fromkeys([*spots, *emptied_paths]))
    messages = JsonTree(Raw(stripped_body)).get_children(("messages",)).values()
    return {("messages",): encode_json([{"role": "assistant", "content": [newest]}, *messages])}


def _is_compaction_with_text(fields: Mapping[PathStep, Raw]) -> bool:
    return read_json_text(fields.get("type")) == "compaction" and get_json_first_char(fields.get("content")) == '"'


def _drop_compaction_edits(tree: JsonTree, _work: FixContext, _steps: PathSteps) -> Replacements:
    """Return the request without the edits that compact; without all that stands around them where that is all."""
    place: PathSteps = ("context_management", "edits")
    edits = tree.get_children(place)
    compact_indexes = [
        index
        for index in edits
        if read_json_text(tree.get_children((*place, index)).get("type")).startswith("compact_")
    ]
    if len(compact_indexes) < len(edits):
        return {(*place, index): None for index in compact_indexes}
    return {place if len(tree.get_children(place[:1])) > 1 else place[:1]: None}


def _drop_surplus_breakpoints(tree: JsonTree, _work: FixContext, _steps: PathSteps) -> Replacements:
    """Return the request without the cache breakpoints that are too many: the oldest in the messages first."""
    paths = [
        *_iter_breakpoint_paths(tree, "messages"),
        *_iter_breakpoint_paths(tree, "system"),
        *_iter_breakpoint_paths(tree, "tools"),
    ]
    max_breakpoints = _MAX_CACHE_BREAKPOINTS - (tree.get_raw(("cache_control",)) is not None)
    return dict.fromkeys(paths[: max(0, len(paths) - max_breakpoints)])


def _iter_breakpoint_paths(tree: JsonTree, name: str) -> Iterator[PathSteps]:
    """Yield where breakpoints stand in one field, in the order of the prompt."""
    for index in tree.get_children((name,)):
        if name != "messages":
            yield from _iter_block_breakpoint_path(tree, (name, index))
            continue
        content: PathSteps = (name, index, "content")
        for block in tree.get_children(content):
            for inner in tree.get_children((*content, block, "content")):
                yield from _iter_block_breakpoint_path(tree, (*content, block, "content", inner))
            yield from _iter_block_breakpoint_path(tree, (*content, block))


def _iter_block_breakpoint_path(tree: JsonTree, block: PathSteps) -> Iterator[PathSteps]:
    mark = tree.get_children(block).get("cache_control")
    if mark is not None and bytes(mark) != b"null":
        yield (*block, "cache_control")


def _replace_image_by_placeholder(tree: JsonTree, _work: FixContext, steps: PathSteps) -> Replacements:
    """Return the line that stands for the image at ``steps``, which is too large to be sent."""
    mime = read_json_text(tree.get_raw((*steps, "source", "media_type")))
    return {steps: encode_json({"type": "text", "text": format_part_placeholder(Media("image", mime))})}


def _rank_oversized_image(tree: JsonTree, steps: PathSteps) -> int:
    """Return 0 for an image that is too large even among few, 1 for one that is too large among many."""
    size = read_image_size(read_json_text(tree.get_raw((*steps, "source", "data"))))
    return 0 if size is not None and max(size) > MAX_PIXELS_FEW_IMAGES else 1


_REPLACEMENTS_BY_RULE: Mapping[str, RuleReplacement] = {
    "thinking-budget": RuleReplacement(_replace_thinking_budget),
    "thinking-mode": RuleReplacement(_replace_thinking_mode),
    "thinking-first": RuleReplacement(lambda _tree, _work, _steps: {("thinking",): None}),
    "edit-order": RuleReplacement(_move_edit_first, "it is the first one now"),
    "edit-trigger": RuleReplacement(lambda _tree, _work, steps: {steps: b"50000"}),
    "context-management": RuleReplacement(lambda _tree, _work, steps: {steps: b"1000"}),
    "compaction-first": RuleReplacement(_move_newest_compaction_first, "it stands before all else now"),
    "compaction-single": RuleReplacement(
        _move_newest_compaction_first, "the newest is the first block now, older ones are left out"
    ),
    "compaction-or-edit": RuleReplacement(_drop_compaction_edits),
    "limit": RuleReplacement(lambda _tree, _work, steps: {steps: b"16"} if steps == ("max_output_tokens",) else {}),
    "unknown-field": RuleReplacement(_drop_unknown_fields),
    "tools": RuleReplacement(_replace_name_or_drop_empty_tools),
    "tool-shape": RuleReplacement(_replace_tool_name),
    "tool-names": RuleReplacement(_drop_duplicate_or_replace_name),
    "cache-count": RuleReplacement(_drop_surplus_breakpoints),
    "image-size": RuleReplacement(_replace_image_by_placeholder, "a line stands for it", _rank_oversized_image),
}
"""What is done for a rule, by its name."""
