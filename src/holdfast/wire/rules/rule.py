"""What a rule of an API is, what breaking it looks like, and the request as rules read it.

The validator stands apart from hygiene on purpose: no rule code is shared, so that one proves the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from holdfast.wire.models import Traits

Evidence: TypeAlias = Literal["documented", "observed", "recalled", "inferred"]
"""How a rule is known: from the provider's documents, from errors people met, from memory, or by reasoning."""
Broken: TypeAlias = Iterator[tuple[str, str]]
"""Where a rule is broken (a JSON path) and what to say about it."""


class Finding(Struct, frozen=True):
    """One place where a request breaks one rule."""

    rule: str
    level: Literal["error", "warning"]
    path: str
    message: str


class Rule(Struct, frozen=True):
    """One rule of an API. A rule that is only inferred warns; all others refuse."""

    name: str
    check: Callable[[Request], Broken]
    """Yields every place where a request breaks the rule; its docstring is the rule in words."""
    evidence: Evidence
    source: str

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return (self.check.__doc__ or "").partition("\n")[0]

    @property
    def level(self) -> Literal["error", "warning"]:
        """``warning`` for what is only inferred, else ``error``."""
        return "warning" if self.evidence == "inferred" else "error"


DOCS = "reference and SDK 2.11 types of the Messages API"
MET = "error texts in public issues"
KNOWN = "long-standing behaviour, not re-read"


def type_name(value: object) -> str:
    """Return what JSON calls the type of ``value``."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def findings(rules: Sequence[Rule], request: Request) -> tuple[Finding, ...]:
    """Return every place where ``request`` breaks one of ``rules``."""
    return tuple([Finding(rule.name, rule.level, *place) for rule in rules for place in rule.check(request)])


class Block(Struct):
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


class Request(Struct):
    """A Messages request as its rules read it; malformed pieces are left out of the views."""

    body: Mapping[str, Any]
    size: int
    """Bytes of the body."""
    betas: frozenset[str] | None
    """The beta features asked for, or nothing when they are not known."""
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

    def option(self, *names: str) -> Any:
        """Return a field of the body, or of the objects inside it; nothing when one is missing."""
        value: Any = self.body
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def tools(self) -> list[Mapping[str, Any]]:
        """Return the tools that are objects."""
        tools = self.body.get("tools")
        return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def view(body: Mapping[str, Any], size: int, betas: frozenset[str] | None, traits: Traits | None) -> Request:
    """Return ``body`` as rules read it, each block looked at once."""
    listed = body.get("messages")
    messages = listed if isinstance(listed, list) else []
    request = Request(body, size, betas, traits, messages, [], {})
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
