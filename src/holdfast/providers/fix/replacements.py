"""Replacements that satisfy a rule better than removing what breaks it: an allowed value, or the one that was meant.

Each function returns the new values by their paths, or an empty mapping if it knows none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Raw, Struct

from holdfast.messages.message import format_part_placeholder
from holdfast.messages.parts import Media
from holdfast.messages.size.image_size import read_image_size
from holdfast.normalize.parts import encode_wire_tool_name
from holdfast.providers.anthropic.models import MAX_PIXELS_FEW_IMAGES, get_claude_traits
from holdfast.providers.anthropic.rules.block_kinds import FIELDS_BY_BLOCK_KIND
from holdfast.providers.anthropic.rules.options import MIN_THINKING_BUDGET
from holdfast.providers.common.json.json_path import (
    JsonTree,
    PathStep,
    PathSteps,
    Replacements,
    get_json_first_char,
    replace_json_at_paths,
)
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.common.tool_names import map_invalid_tool_names
from holdfast.providers.fix.fix_context import FixContext
from holdfast.providers.fix.response_items import add_empty_summary, drop_approval, drop_item

_MAX_CACHE_BREAKPOINTS = 4
"""Cache breakpoints that a request of the Messages API may have, over tools, system prompt and messages."""


class RuleReplacement(Struct, frozen=True):
    """The replacement for one rule."""

    find_changes: Callable[[JsonTree, FixContext, PathSteps], Replacements]
    description: str = ""
    """What to tell the user, if the new values do not show it."""
    rank_path: Callable[[JsonTree, PathSteps], int] | None = None
    """For rules about a number of things: the places with the lowest rank are replaced first, in their order."""


def get_path_ranking(rule: str) -> Callable[[JsonTree, PathSteps], int] | None:
    """Return the ranking of the places that break ``rule``, or None if all of them must be replaced."""
    replacement = _REPLACEMENTS_BY_RULE.get(rule)
    return None if replacement is None else replacement.rank_path


def find_replacement(
    rule: str,
    tree: JsonTree,
    context: FixContext,
    steps: PathSteps,
) -> tuple[Replacements, str]:
    """Find the replacement for ``rule``, broken at ``steps``: the changes (empty if there are none) and a description.

    Only values that exist are replaced.
    """
    replacement = _REPLACEMENTS_BY_RULE.get(rule)
    if replacement is None:
        return {}, ""
    changes = replacement.find_changes(tree, context, steps)
    existing = {}
    for place, value in changes.items():
        if tree.get_raw(place) is not None:
            existing[place] = value
    return existing, replacement.description


def _replace_thinking_budget(tree: JsonTree, _context: FixContext, steps: PathSteps) -> Replacements:
    """Raise a thinking budget to the minimum, or lower it below ``max_tokens``.

    A budget that was too high leaves 1,024 tokens for the answer. There is no change if ``max_tokens`` has no room for
    any budget.
    """
    max_tokens = read_whole_number(tree.get_raw(("max_tokens",)))
    if max_tokens <= MIN_THINKING_BUDGET:
        return {}
    budget = MIN_THINKING_BUDGET
    # The rule is broken by a budget that is too low, or by one that is not below ``max_tokens``.
    is_too_low = read_whole_number(tree.get_raw(steps)) < MIN_THINKING_BUDGET
    if not is_too_low:
        budget = max(MIN_THINKING_BUDGET, max_tokens - MIN_THINKING_BUDGET)
    return {("thinking", "budget_tokens"): str(budget).encode()}


def read_whole_number(raw: Raw | None) -> int:
    """Return a JSON value as a whole number, or 0 if it is not a plain one of up to 15 digits."""
    data = b"" if raw is None else bytes(raw)
    return int(data) if data.isdigit() and len(data) < 16 else 0


def _replace_thinking_mode(tree: JsonTree, context: FixContext, _steps: PathSteps) -> Replacements:
    """Replace a thinking mode that the model refuses: thinking that is switched off by the mode that comes closest to
    it, anything else by the adaptive mode; nothing if the model has neither.
    """
    model_traits = get_claude_traits(context.model)
    if model_traits is None or not model_traits.adaptive_thinking:
        return {}
    is_disabled = read_json_text(tree.get_raw(("thinking", "type"))) == "disabled"
    has_high_effort = read_json_text(tree.get_raw(("output_config", "effort"))) in ("xhigh", "max")
    if is_disabled and model_traits.thinks_between_tools and not has_high_effort:
        return {("thinking",): b'{"type":"between_tools"}'}
    return {("thinking",): b'{"type":"adaptive"}'}


def _move_edit_first(tree: JsonTree, _context: FixContext, steps: PathSteps) -> Replacements:
    """Move the context edit at ``steps`` to the front of the list."""
    list_steps = steps[:2]
    raws = read_json_items(tree.get_raw(list_steps))
    index = steps[2] if len(steps) > 2 else None
    if not isinstance(index, int) or index >= len(raws):
        return {}
    reordered_raws = [raws[index], *raws[:index], *raws[index + 1 :]]
    return {list_steps: encode_json(reordered_raws)}


def _drop_unknown_fields(tree: JsonTree, _context: FixContext, steps: PathSteps) -> Replacements:
    """Remove the fields of a block that its kind does not have."""
    fields = tree.get_children(steps)
    allowed_fields = FIELDS_BY_BLOCK_KIND.get(read_json_text(fields.get("type")))
    if allowed_fields is None:
        return {}
    return {(*steps, key): None for key in fields if key not in allowed_fields}


def _replace_tool_name(tree: JsonTree, context: FixContext, steps: PathSteps) -> Replacements:
    """Rename a tool, and the choice of it, to a valid name.

    It is the name that normalization gives to the calls of this tool; if another tool has it already, nothing changes.
    """
    name = read_json_text(tree.get_raw(steps)) if steps[-1] == "name" else ""
    declared_names = (read_json_text(tree.get_raw(path)) for path in _iter_declared_name_paths(tree))
    new_name = map_invalid_tool_names(declared_names, context.dialect).get(name, "")
    if not name.strip() or new_name != encode_wire_tool_name(name, context.dialect):
        return {}
    replacements: dict[PathSteps, bytes | None] = {}
    for path in (steps, *_iter_chosen_name_paths(tree)):
        if read_json_text(tree.get_raw(path)) == name:
            replacements[path] = encode_json(new_name)
    return replacements


def _iter_declared_name_paths(tree: JsonTree) -> Iterator[PathSteps]:
    """Yield the paths of the names of declared tools, in the forms of all APIs."""
    for index in tree.get_children(("tools",)):
        yield ("tools", index, "name")
        yield ("tools", index, "function", "name")
        for key in ("functionDeclarations", "function_declarations"):
            for inner_index in tree.get_children(("tools", index, key)):
                yield ("tools", index, key, inner_index, "name")


def _iter_chosen_name_paths(tree: JsonTree) -> Iterator[PathSteps]:
    """Yield the paths of the names of tools that may or must be called, in the forms of all APIs."""
    yield ("tool_choice", "name")
    yield ("tool_choice", "function", "name")
    for config in (("toolConfig", "functionCallingConfig"), ("tool_config", "function_calling_config")):
        for key in ("allowedFunctionNames", "allowed_function_names"):
            for index in tree.get_children((*config, key)):
                yield (*config, key, index)


def _replace_name_or_drop_empty_tools(tree: JsonTree, context: FixContext, steps: PathSteps) -> Replacements:
    """Remove an empty list of tools, or rename a tool to a valid name."""
    if bytes(tree.get_raw(steps) or b"") == b"[]":
        return {steps: None}
    return _replace_tool_name(tree, context, steps)


def _drop_duplicate_or_replace_name(tree: JsonTree, context: FixContext, steps: PathSteps) -> Replacements:
    """Remove a tool that is declared twice, or rename a tool to a valid name."""
    return _drop_duplicate_tool(tree, steps) or _replace_tool_name(tree, context, steps)


def _drop_duplicate_tool(tree: JsonTree, steps: PathSteps) -> Replacements:
    """Remove a tool if one with the same bytes comes before it; two different tools of one name are left alone."""
    tool_steps = steps[:-1]
    raw_tool = tree.get_raw(tool_steps)
    index = tool_steps[-1] if tool_steps else None
    if raw_tool is None or not isinstance(index, int):
        return {}
    for earlier_index in range(index):
        earlier_tool = tree.get_raw((*tool_steps[:-1], earlier_index))
        if earlier_tool == raw_tool:
            return {tool_steps: None}
    return {}


def _move_newest_compaction_first(tree: JsonTree, _context: FixContext, _steps: PathSteps) -> Replacements:
    """Move the newest compaction block to the front of the messages, and remove older ones.

    The newest block stands for everything before it, including what older blocks stand for.
    """
    block_paths: list[PathSteps] = []
    for message_index in tree.get_children(("messages",)):
        content_path: PathSteps = ("messages", message_index, "content")
        for block_index in tree.get_children(content_path):
            block_path = (*content_path, block_index)
            if _is_compaction_with_text(tree.get_children(block_path)):
                block_paths.append(block_path)
    newest_block = tree.get_raw(block_paths[-1]) if block_paths else None
    if newest_block is None:
        return {}
    # A message of compaction blocks alone would be left empty, which the API refuses.
    removed_paths = [*block_paths, *_list_emptied_messages(tree, block_paths)]
    stripped_body = replace_json_at_paths(tree.raw, dict.fromkeys(removed_paths))
    messages = JsonTree(Raw(stripped_body)).get_children(("messages",)).values()
    return {("messages",): encode_json([{"role": "assistant", "content": [newest_block]}, *messages])}


def _list_emptied_messages(tree: JsonTree, block_paths: Sequence[PathSteps]) -> list[PathSteps]:
    """List the messages of which no block is left once those at ``block_paths`` are removed."""
    emptied_messages = []
    for message_path in dict.fromkeys(block_path[:2] for block_path in block_paths):
        content_path = (*message_path, "content")
        if all((*content_path, block_index) in block_paths for block_index in tree.get_children(content_path)):
            emptied_messages.append(message_path)
    return emptied_messages


def _is_compaction_with_text(fields: Mapping[PathStep, Raw]) -> bool:
    return read_json_text(fields.get("type")) == "compaction" and get_json_first_char(fields.get("content")) == '"'


def _drop_compaction_edits(tree: JsonTree, _context: FixContext, _steps: PathSteps) -> Replacements:
    """Remove the context edits that compact, and the list and the object around them if nothing else is in there."""
    edits_path: PathSteps = ("context_management", "edits")
    edits = tree.get_children(edits_path)
    compact_paths: list[PathSteps] = []
    for index in edits:
        edit_fields = tree.get_children((*edits_path, index))
        if read_json_text(edit_fields.get("type")).startswith("compact_"):
            compact_paths.append((*edits_path, index))
    if len(compact_paths) < len(edits):
        return dict.fromkeys(compact_paths)
    has_other_fields = len(tree.get_children(edits_path[:1])) > 1
    return {edits_path if has_other_fields else edits_path[:1]: None}


def _drop_surplus_breakpoints(tree: JsonTree, _context: FixContext, _steps: PathSteps) -> Replacements:
    """Remove surplus cache breakpoints.

    Those in the messages go first, oldest first, then those of the system prompt: a breakpoint caches everything before
    it, so a later one makes an earlier one in the messages redundant.
    """
    paths = [
        *_iter_breakpoint_paths(tree, "messages"),
        *_iter_breakpoint_paths(tree, "system"),
        *_iter_breakpoint_paths(tree, "tools"),
    ]
    has_automatic_breakpoint = tree.get_raw(("cache_control",)) is not None
    max_breakpoints = _MAX_CACHE_BREAKPOINTS - has_automatic_breakpoint
    surplus_count = max(0, len(paths) - max_breakpoints)
    return dict.fromkeys(paths[:surplus_count])


def _move_breakpoint_off_deferred_tool(tree: JsonTree, _context: FixContext, steps: PathSteps) -> Replacements:
    """Move the breakpoint of a deferred tool to the last tool that is not deferred, unless that has one."""
    replacements: dict[PathSteps, bytes | None] = {steps: None}
    for index in reversed(list(tree.get_children(("tools",)))):
        tool = tree.get_children(("tools", index))
        if not tool or bytes(tool.get("defer_loading", b"")) == b"true":
            continue
        if bytes(tool.get("cache_control", b"null")) == b"null":
            marker = tree.get_raw(steps)
            replacements["tools", index] = encode_json({**tool, "cache_control": marker})
        break
    return replacements


def _end_pending_run(tree: JsonTree, _context: FixContext, steps: PathSteps) -> Replacements:
    """Replace a code execution whose container is not known by a text, and make its calls ordinary ones."""
    fields = tree.get_children(steps)
    code = bytes(fields.get("input", b"{}")).decode()
    text = f"[{read_json_text(fields.get('name'))} was interrupted: {code}]"
    replacements: dict[PathSteps, bytes | None] = {steps: encode_json({"type": "text", "text": text})}
    for message_index in tree.get_children(("messages",)):
        content: PathSteps = ("messages", message_index, "content")
        for block_index in tree.get_children(content):
            caller: PathSteps = (*content, block_index, "caller")
            if read_json_text(tree.get_raw((*caller, "tool_id"))) == read_json_text(fields.get("id")):
                replacements[caller] = None
    return replacements


def _load_search_tool(tree: JsonTree, _context: FixContext, _steps: PathSteps) -> Replacements:
    """Load the tool search tool at once, or all tools if there is none to find them with."""
    paths: list[PathSteps] = []
    search_paths: list[PathSteps] = []
    for index in tree.get_children(("tools",)):
        path: PathSteps = ("tools", index, "defer_loading")
        paths.append(path)
        if read_json_text(tree.get_raw(("tools", index, "type"))).startswith("tool_search_tool"):
            search_paths.append(path)
    return dict.fromkeys(search_paths or paths)


def _iter_breakpoint_paths(tree: JsonTree, name: str) -> Iterator[PathSteps]:
    """Yield the paths of the breakpoints in one top-level field, in the order of the prompt."""
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
    cache_control = tree.get_children(block).get("cache_control")
    if cache_control is not None and bytes(cache_control) != b"null":
        yield (*block, "cache_control")


def _replace_image_by_placeholder(tree: JsonTree, _context: FixContext, steps: PathSteps) -> Replacements:
    """Replace an image that is too large to be sent, and cannot be scaled, by its placeholder line."""
    mime = read_json_text(tree.get_raw((*steps, "source", "media_type")))
    return {steps: encode_json({"type": "text", "text": format_part_placeholder(Media("image", mime))})}


def _rank_oversized_image(tree: JsonTree, steps: PathSteps) -> int:
    """Rank images: 0 for one that is too large in any request, 1 for one that is too large only among many."""
    size = read_image_size(read_json_text(tree.get_raw((*steps, "source", "data"))))
    if size is not None and max(size) > MAX_PIXELS_FEW_IMAGES:
        return 0
    return 1


def _raise_output_limit(_tree: JsonTree, _context: FixContext, steps: PathSteps) -> Replacements:
    return {steps: b"16"} if steps == ("max_output_tokens",) else {}


def _replace_document_by_text(tree: JsonTree, _context: FixContext, steps: PathSteps) -> Replacements:
    """Replace a document of the assistant's by its text, or by its placeholder line if it has none."""
    fields = tree.get_children(steps)
    source = (*steps, "source")
    mime = read_json_text(tree.get_raw((*source, "media_type")))
    text = read_json_text(tree.get_raw((*source, "data"))) if mime == "text/plain" else ""
    title = read_json_text(fields.get("title"))
    shown = text or format_part_placeholder(Media("document", mime, name=title))
    return {steps: encode_json({"type": "text", "text": shown})}


_REPLACEMENTS_BY_RULE: Mapping[str, RuleReplacement] = {
    "thinking-budget": RuleReplacement(_replace_thinking_budget),
    "thinking-mode": RuleReplacement(_replace_thinking_mode),
    # The turn has no thinking block to begin with, and one cannot be made up, so thinking is turned off.
    "thinking-first": RuleReplacement(lambda _tree, _context, _steps: {("thinking",): None}),
    "edit-order": RuleReplacement(_move_edit_first, "moved to the front"),
    # The smallest values that the providers accept: compaction triggers of Anthropic and Responses.
    "edit-trigger": RuleReplacement(lambda _tree, _context, steps: {steps: b"50000"}),
    "context-management": RuleReplacement(lambda _tree, _context, steps: {steps: b"1000"}),
    "compaction-first": RuleReplacement(_move_newest_compaction_first, "moved to the beginning"),
    "compaction-single": RuleReplacement(
        _move_newest_compaction_first, "the newest is moved to the beginning, older ones are left out"
    ),
    "compaction-or-edit": RuleReplacement(_drop_compaction_edits),
    # Responses refuses an output limit below 16.
    "limit": RuleReplacement(_raise_output_limit),
    "unknown-field": RuleReplacement(_drop_unknown_fields),
    "tools": RuleReplacement(_replace_name_or_drop_empty_tools),
    "tool-shape": RuleReplacement(_replace_tool_name),
    "tool-names": RuleReplacement(_drop_duplicate_or_replace_name),
    "container": RuleReplacement(_end_pending_run, "a line of text stands for it, as its container is not known"),
    "deferred-cache": RuleReplacement(
        _move_breakpoint_off_deferred_tool, "the breakpoint is moved to the last tool that is not deferred"
    ),
    "deferred-all": RuleReplacement(_load_search_tool, "defer_loading is left out"),
    "cache-count": RuleReplacement(_drop_surplus_breakpoints),
    "item-fields": RuleReplacement(add_empty_summary, "an empty one is added"),
    "search-action": RuleReplacement(drop_item, "the item is left out, it has no text"),
    "image-result": RuleReplacement(drop_item, "the item is left out, it has no image"),
    "approval-pair": RuleReplacement(drop_approval, "the approval is left out; a reason for it becomes a user message"),
    "pdf-pages": RuleReplacement(_replace_document_by_text, "a line of text stands for it"),
    "image-size": RuleReplacement(_replace_image_by_placeholder, "replaced by a line of text", _rank_oversized_image),
    "version-document": RuleReplacement(_replace_document_by_text, "its text, or a line, stands for it"),
    "version-citations": RuleReplacement(lambda _tree, _context, steps: {steps: None}, "left out, the text stays"),
    "image-bytes": RuleReplacement(_replace_image_by_placeholder, "replaced by a line of text"),
}
"""Replacements by the name of the rule, without the API before it."""
