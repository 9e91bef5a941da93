"""A Responses request in the form that its rules read: the items of the input with their positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any

from msgspec import Struct

from holdfast.providers.rules.envelope import RequestView


class ItemView(Struct, gc=False):
    """An item of the input with its position."""

    kind: str
    """Its type. ``message`` for an item with only a role, ``item_reference`` for one with only an id."""
    value: Mapping[str, Any]
    item_index: int

    @property
    def path(self) -> str:
        """The JSON path of the item."""
        return f"$.input[{self.item_index}]"

    @property
    def is_model_item(self) -> bool:
        """Whether the model made it, so that it may follow reasoning."""
        if self.kind == "message":
            return self.value.get("role") == "assistant"
        return self.kind not in _CLIENT_ITEM_KINDS


class PairingFault(Enum):
    """Why a call and its output do not pair."""

    UNANSWERED = auto()
    """A call without an output."""
    ORPHAN = auto()
    """An output without a call."""
    REPEATED = auto()
    """A second call or output with the same id."""


_CLIENT_ITEM_KINDS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
     "apply_patch_call_output", "computer_call_output", "mcp_approval_response", "additional_tools",
     "configuration_update", "compaction_trigger"}
)  # fmt: skip
"""Types of items that the model never makes, messages aside."""


CONTENT_FIELD_BY_KIND = {"message": "content", "function_call_output": "output", "custom_tool_call_output": "output"}
"""The field of an item with a text or content parts, by its type."""


class ResponsesView(RequestView):
    """A Responses request. A plain string as input has no items."""

    listed_items: list[Any]
    items: list[ItemView]
    """Items that are objects with a type, in order."""
    items_by_kind: dict[str, list[ItemView]]

    parts: list[tuple[ItemView, int, Any]]
    """Content parts of messages and of outputs of functions: item, index in it, part."""
    pairing_faults: list[tuple[PairingFault, ItemView]] | None = None
    """Calls and outputs that do not pair; None until the first rule asks."""

    def iter_items(self, *kinds: str) -> Iterator[ItemView]:
        """Yield the items of these kinds, kind after kind."""
        for kind in kinds:
            yield from self.items_by_kind.get(kind, ())

    @property
    def is_continued(self) -> bool:
        """Whether part of the history is stored by the server."""
        return any(self.body.get(key) is not None for key in ("previous_response_id", "conversation"))


def build_responses_view(envelope: RequestView) -> ResponsesView:
    """Build the view of a body in one pass over its items."""
    request = ResponsesView(
        envelope.body,
        envelope.body_bytes,
        envelope.betas,
        envelope.model,
        envelope.version,
        envelope.get_list("input"),
        [],
        {},
        [],
    )
    for item_index, value in enumerate(request.listed_items):
        kind = _get_item_kind(value) if isinstance(value, dict) else ""
        if not kind:
            continue
        item = ItemView(kind, value, item_index)
        request.items.append(item)
        request.items_by_kind.setdefault(kind, []).append(item)
        content_field = CONTENT_FIELD_BY_KIND.get(kind)
        content = None if content_field is None else value.get(content_field)
        if isinstance(content, list):
            for part_index, part in enumerate(content):
                request.parts.append((item, part_index, part))
    return request


def _get_item_kind(value: Mapping[str, Any]) -> str:
    kind = value.get("type")
    if isinstance(kind, str):
        return kind
    if kind is not None:
        return ""
    # The API lets both types be left out.
    if "role" in value:
        return "message"
    return "item_reference" if "id" in value else ""
