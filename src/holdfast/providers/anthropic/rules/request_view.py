"""A Messages request in the form that its rules read: blocks with their positions, and messages merged into turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.anthropic.models import ClaudeTraits, get_claude_traits
from holdfast.providers.rules.envelope import RequestView


class BlockView(Struct, gc=False):
    """A block of content and its position: message ``message_index``, block ``block_index`` of it, and inside a tool
    result ``inner_index``.
    """

    kind: str
    value: Mapping[str, Any]
    role: str
    message_index: int
    block_index: int
    """-1 for content that is a plain string."""
    inner_index: int = -1

    @property
    def path(self) -> str:
        """The JSON path of the block."""
        path = f"$.messages[{self.message_index}].content"
        if self.block_index >= 0:
            path += f"[{self.block_index}]"
        if self.inner_index >= 0:
            return f"{path}.content[{self.inner_index}]"
        return path


class TurnView(Struct):
    """Neighbouring messages of one role, as the API merges them; without ``system`` messages."""

    role: str
    blocks: list[BlockView]
    last_message_index: int
    """Index of its last message."""

    def get_blocks(self, *kinds: str) -> list[BlockView]:
        """Return the blocks of these kinds, in order."""
        return [block for block in self.blocks if block.kind in kinds]


class AnthropicView(RequestView):
    """A Messages request. Malformed pieces are missing from the turns and blocks."""

    claude_traits: ClaudeTraits | None
    """The traits of the model; None for an unknown one."""
    messages: list[Any]
    turns: list[TurnView]
    blocks: dict[str, list[BlockView]]
    """Blocks by kind, including those inside tool results."""

    def iter_blocks(self, *kinds: str) -> Iterator[BlockView]:
        """Yield the blocks of these kinds, one kind after the other."""
        for kind in kinds:
            yield from self.blocks.get(kind, ())

    def get_last_message(self) -> Mapping[str, Any]:
        """Return the last message, or an empty one."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, dict) else {}


def build_anthropic_view(envelope: RequestView) -> AnthropicView:
    """Build the view of a body in one pass over its blocks."""
    messages = envelope.get_list("messages")
    request = AnthropicView(
        envelope.body,
        envelope.body_bytes,
        envelope.betas,
        envelope.model,
        envelope.version,
        get_claude_traits(envelope.model),
        messages,
        [],
        {},
    )
    for at, message in enumerate(messages):
        if isinstance(message, dict):
            _add_message_to_view(request, message, at)
    return request


def _add_message_to_view(request: AnthropicView, message: Mapping[str, Any], message_index: int) -> None:
    role = message.get("role")
    if not isinstance(role, str):
        return
    blocks = list(_iter_content_blocks(message.get("content"), role, message_index))
    for block in blocks:
        request.blocks.setdefault(block.kind, []).append(block)
        for inner in _iter_result_blocks(block):
            request.blocks.setdefault(inner.kind, []).append(inner)
    # A system message inside the conversation does not end a turn: the API merges the messages around it.
    if role == "system":
        return
    if request.turns and request.turns[-1].role == role:
        request.turns[-1].blocks += blocks
        request.turns[-1].last_message_index = message_index
    else:
        request.turns.append(TurnView(role, blocks, message_index))


def _iter_content_blocks(content: object, role: str, message_index: int) -> Iterator[BlockView]:
    if isinstance(content, str):
        yield BlockView(
            "text",
            {"type": "text", "text": content},
            role,
            message_index,
            -1,
        )
        return
    if not isinstance(content, list):
        return
    for index, value in enumerate(content):
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            yield BlockView(value["type"], value, role, message_index, index)


def _iter_result_blocks(block: BlockView) -> Iterator[BlockView]:
    content = block.value.get("content") if block.kind == "tool_result" else None
    if not isinstance(content, list):
        return
    for inner_index, value in enumerate(content):
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            yield BlockView(
                value["type"],
                value,
                block.role,
                block.message_index,
                block.block_index,
                inner_index,
            )
