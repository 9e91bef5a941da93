"""A Responses request as its rules read it: the input's items where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.rules.envelope import RequestView


class ItemView(Struct, gc=False):
    """An item of the input: its kind, what it is, where it stands."""

    kind: str
    """Its type; ``message`` for one that has only a role, ``item_reference`` for one that has only an id."""
    value: Mapping[str, Any]
    item_index: int

    @property
    def path(self) -> str:
        """The JSON path of the item."""
        return f"$.input[{self.item_index}]"

    @property
    def is_model_item(self) -> bool:
        """Whether the model made it, and it may stand behind its reasoning."""
        return self.value.get("role") == "assistant" if self.kind == "message" else self.kind not in _CLIENT_ITEM_KINDS


_CLIENT_ITEM_KINDS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output",
     "apply_patch_call_output", "computer_call_output", "mcp_approval_response", "additional_tools",
     "configuration_update", "compaction_trigger"}
)  # fmt: skip
"""Kinds of items that the model never makes, messages aside."""


CONTENT_FIELD_BY_KIND = {"message": "content", "function_call_output": "output", "custom_tool_call_output": "output"}
"""The field of an item that holds a text or parts, by its kind."""


class ResponsesView(RequestView):
    """A Responses request; a text as input has no items."""

    listed_items: list[Any]
    items: list[ItemView]
    """Items that are objects of a kind, in order."""
    items_by_kind: dict[str, list[ItemView]]

    parts: list[tuple[ItemView, int, Any]]
    """Parts of messages and of what function tools gave back: the item, the place in it, the part."""
    pairing_faults: list[tuple[str, ItemView]] | None = None
    """Calls and outputs that do not pair, and how; nothing before the first rule asks."""

    def iter_items(self, *kinds: str) -> Iterator[ItemView]:
        """Yield the items of these kinds, kind after kind."""
        for kind in kinds:
            yield from self.items_by_kind.get(kind, ())

    @property
    def is_continued(self) -> bool:
        """Whether a part of the history lies with the server."""
        return any(self.body.get(key) is not None for key in ("previous_response_id", "conversation"))


def build_responses_view(envelope: RequestView) -> ResponsesView:
    """Return a body as rules read it, each item looked at once."""
    request = ResponsesView(
        envelope.body, envelope.body_bytes, envelope.betas, envelope.model, envelope.get_list("input"), [], {}, []
    )
    for at, value in enumerate(request.listed_items):
        kind = _get_item_kind(value) if isinstance(value, dict) else ""
        if kind:
            item = ItemView(kind, value, at)
            request.items.append(item)
            request.items_by_kind.setdefault(kind, []).append(item)
            key = CONTENT_FIELD_BY_KIND.get(kind)
            content = value.get(key) if key is not None else None
            request.parts += [
                (item, index, part) for index, part in enumerate(content if isinstance(content, list) else ())
            ]
    return request


def _get_item_kind(value: Mapping[str, Any]) -> str:
    kind = value.get("type")
    if kind is None:
        return "message" if "role" in value else "item_reference" if "id" in value else ""
    return kind if isinstance(kind, str) else ""
