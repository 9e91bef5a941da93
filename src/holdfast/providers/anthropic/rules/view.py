"""A Messages request as its rules read it: blocks where they stand, and messages merged into turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.models import Traits, traits
from holdfast.providers.rules.envelope import Envelope


class Block(Struct, gc=False):
    """A block of content where it stands: message ``at``, place ``index`` in it, ``inner`` inside a tool result."""

    kind: str
    value: Mapping[str, Any]
    role: str
    at: int
    index: int
    """-1 for content that is a plain string."""
    inner: int = -1

    @property
    def path(self) -> str:
        """The JSON path of the block."""
        path = f"$.messages[{self.at}].content"
        if self.index >= 0:
            path += f"[{self.index}]"
        return f"{path}.content[{self.inner}]" if self.inner >= 0 else path


class Turn(Struct):
    """Neighbouring messages of one role, as the API merges them; ``system`` messages aside."""

    role: str
    blocks: list[Block]
    last: int
    """Index of its last message."""

    def of(self, *kinds: str) -> list[Block]:
        """Return its blocks of these kinds, in order."""
        return [block for block in self.blocks if block.kind in kinds]


class Request(Envelope):
    """A Messages request as its rules read it; malformed pieces are left out of the views."""

    traits: Traits | None
    """What is known of the model."""
    messages: list[Any]
    turns: list[Turn]
    blocks: dict[str, list[Block]]
    """Blocks by kind, those inside tool results too."""

    def kinds(self, *kinds: str) -> Iterator[Block]:
        """Yield the blocks of these kinds, kind after kind."""
        for kind in kinds:
            yield from self.blocks.get(kind, ())

    def last(self) -> Mapping[str, Any]:
        """Return the last message, or an empty one."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, dict) else {}


def view(known: Envelope) -> Request:
    """Return a body as rules read it, each block looked at once."""
    messages = known.listed("messages")
    request = Request(known.body, known.size, known.betas, known.model, traits(known.model), messages, [], {})
    for at, message in enumerate(messages):
        if isinstance(message, dict):
            _view_message(request, message, at)
    return request


def _view_message(request: Request, message: Mapping[str, Any], at: int) -> None:
    role = message.get("role")
    if not isinstance(role, str):
        return
    blocks = list(_blocks(message.get("content"), role, at))
    for block in blocks:
        request.blocks.setdefault(block.kind, []).append(block)
        for inner in _inside(block):
            request.blocks.setdefault(inner.kind, []).append(inner)
    if role == "system":
        return
    if request.turns and request.turns[-1].role == role:
        request.turns[-1].blocks += blocks
        request.turns[-1].last = at
    else:
        request.turns.append(Turn(role, blocks, at))


def _blocks(content: object, role: str, at: int) -> Iterator[Block]:
    if isinstance(content, str):
        yield Block("text", {"type": "text", "text": content}, role, at, -1)
    elif isinstance(content, list):
        for index, value in enumerate(content):
            if isinstance(value, dict) and isinstance(value.get("type"), str):
                yield Block(value["type"], value, role, at, index)


def _inside(block: Block) -> Iterator[Block]:
    content = block.value.get("content") if block.kind == "tool_result" else None
    if isinstance(content, list):
        for inner, value in enumerate(content):
            if isinstance(value, dict) and isinstance(value.get("type"), str):
                yield Block(value["type"], value, block.role, block.at, block.index, inner)
