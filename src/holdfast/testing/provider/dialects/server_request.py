"""A request as the rules of a server see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

Fields = dict[str, Any]
"""A JSON object."""


class ServerRequest(Struct, frozen=True):
    """A request to one of the servers: its body, and the facts from its address and headers."""

    api: str
    body: Fields
    model: str
    """The name of the model in lower case."""
    stream: bool = False
    betas: frozenset[str] = frozenset()
    """Beta features of the body and of the headers."""
    header_betas: frozenset[str] = frozenset()
    """Beta features of the headers alone."""
    size: int = 0
    """Bytes of the body."""

    @property
    def messages(self) -> list[tuple[int, Fields]]:
        """The messages that are objects, with their index."""
        messages = self.body.get("messages")
        if not isinstance(messages, list):
            return []
        return [(index, message) for index, message in enumerate(messages) if isinstance(message, dict)]

    @property
    def tools(self) -> list[tuple[int, Fields]]:
        """The tools that are objects, with their index."""
        tools = self.body.get("tools")
        if not isinstance(tools, list):
            return []
        return [(index, tool) for index, tool in enumerate(tools) if isinstance(tool, dict)]

    @property
    def functions(self) -> list[tuple[int, Fields]]:
        """The functions of Chat tools, with the index of the tool."""
        functions = []
        for index, tool in self.tools:
            function = tool.get("function")
            if isinstance(function, dict):
                functions.append((index, function))
        return functions

    @property
    def has_tools(self) -> bool:
        """Whether there is at least one tool."""
        return bool(self.tools)

    def get_option(self, *names: str) -> Any:
        """Return a field of the body, nested under ``names``, or None if it or an object around it is missing."""
        value: Any = self.body
        for name in names:
            if not isinstance(value, dict):
                return None
            value = value.get(name)
        return value

    def is_model(self, *names: str) -> bool:
        """Return whether the model's name contains one of ``names``."""
        return any(name in self.model for name in names)


def list_calls(message: Mapping[str, Any]) -> list[tuple[int, Fields]]:
    """Return the calls of a Chat message that are objects, with their index."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [(index, call) for index, call in enumerate(calls) if isinstance(call, dict)]


def list_parts(message: Mapping[str, Any]) -> list[tuple[int, Fields]]:
    """Return the parts or blocks of a message that are objects, with their index; a string has none."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [(index, part) for index, part in enumerate(content) if isinstance(part, dict)]


def iter_assistants(request: ServerRequest) -> Iterator[tuple[int, Fields]]:
    """Yield the messages of the assistant with their index."""
    for index, message in request.messages:
        if message.get("role") == "assistant":
            yield index, message


def get_image_url(part: Mapping[str, Any]) -> str:
    """Return the URL of a Chat image or video, given as a string or as an object, or an empty string."""
    for field in ("image_url", "video_url"):
        value = part.get(field)
        if isinstance(value, str):
            return value
        if isinstance(value, dict) and isinstance(value.get("url"), str):
            return str(value["url"])
    return ""


def is_json_object(text: object) -> bool:
    """Return whether ``text`` is a string that holds a JSON object."""
    if not isinstance(text, str):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def iter_schema_nodes(schema: object, steps: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every schema inside of a JSON Schema with its path, the schema itself first."""
    yield steps, schema
    if not isinstance(schema, dict):
        return
    for keyword in ("properties", "$defs", "definitions"):
        children = schema.get(keyword)
        if isinstance(children, dict):
            for name, child in children.items():
                yield from iter_schema_nodes(child, (*steps, keyword, name))
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        children = schema.get(keyword)
        if isinstance(children, list):
            for index, child in enumerate(children):
                yield from iter_schema_nodes(child, (*steps, keyword, str(index)))
    for keyword in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(keyword), dict):
            yield from iter_schema_nodes(schema[keyword], (*steps, keyword))
