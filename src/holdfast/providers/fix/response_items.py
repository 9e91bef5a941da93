"""Replacements for items of OpenAI Responses that may not come back as the server sent them."""

from __future__ import annotations

from holdfast.errors import FormatError
from holdfast.providers.common.json.json_path import JsonTree, PathSteps
from holdfast.providers.common.json.lenient_json import read_json_text
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.fix.fix_context import FixContext
from holdfast.providers.openai_responses.items import decode_item, is_model_item


def add_empty_summary(tree: JsonTree, _context: FixContext, steps: PathSteps) -> dict[PathSteps, bytes | None]:
    """Add the summary that a reasoning item lacks, so that its sealed content is kept."""
    item_steps = steps[:2]
    fields = tree.get_children(item_steps)
    if steps[2:] != ("summary",) or read_json_text(fields.get("type")) != "reasoning":
        return {}
    return {item_steps: encode_json({**fields, "summary": []})}


def drop_item(tree: JsonTree, _context: FixContext, steps: PathSteps) -> dict[PathSteps, bytes | None]:
    """Remove the whole item that a path leads into.

    Reasoning right before it goes too, unless another item of the model follows: reasoning is refused alone.
    """
    field, index = steps[:2]
    changes: dict[PathSteps, bytes | None] = {steps[:2]: None}
    if not isinstance(index, int) or _is_model_item_at(tree, (field, index + 1)):
        return changes
    before = index - 1
    while read_json_text(tree.get_children((field, before)).get("type")) == "reasoning":
        changes[field, before] = None
        before -= 1
    return changes


def _is_model_item_at(tree: JsonTree, steps: PathSteps) -> bool:
    raw = tree.get_raw(steps)
    if raw is None:
        return False
    try:
        return is_model_item(decode_item(raw))
    except FormatError:
        return False


def drop_approval(tree: JsonTree, _context: FixContext, steps: PathSteps) -> dict[PathSteps, bytes | None]:
    """Remove an approval; the reason that the user gave for it becomes a message of the user's."""
    reason = read_json_text(tree.get_children(steps[:2]).get("reason"))
    if not reason.strip():
        return {steps[:2]: None}
    content = [{"type": "input_text", "text": reason}]
    return {steps[:2]: encode_json({"type": "message", "role": "user", "content": content})}
