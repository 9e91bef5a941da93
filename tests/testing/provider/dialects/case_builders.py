"""Builders of request bodies for the cases of servers, and the value of a case."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class RuleCase(NamedTuple):
    """A request that the server takes, and one that differs in what the rule forbids."""

    accepted: dict[str, Any]
    refused: dict[str, Any]
    words: str
    """A piece of the message of the refusal."""
    status: int = 400
    headers: Mapping[str, str] = MappingProxyType({})
    """Headers of the refused request."""
    model: str = ""
    """The model, if the address names it."""


def user(content="hello", **fields):
    """Return a user message."""
    return {"role": "user", "content": content, **fields}


def system(content="Be brief.", **fields):
    """Return a system message."""
    return {"role": "system", "content": content, **fields}


def assistant(content="Kelp.", *ids, arguments="{}", **fields):
    """Return a message of the assistant, with a call of ``read`` for each id."""
    message = {"role": "assistant", "content": content}
    if ids:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": "read", "arguments": arguments}} for id_ in ids
        ]
    return message | fields


def result(id_, content="done", **fields):
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": id_, "content": content, **fields}


def tool(name="read", parameters=None, **fields):
    """Return a tool with a schema."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}} if parameters is None else parameters
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


NAMED_TOOL = {"type": "function", "function": {"name": "read"}}
"""A tool_choice that names a tool."""
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
"""An image of one pixel."""


def image(url=PNG):
    """Return an image part."""
    return {"type": "image_url", "image_url": {"url": url}}


def chat(model, *messages, **fields):
    """Return a body of Chat Completions; without messages it has one of the user."""
    return {"model": model, "messages": list(messages or [user()]), **fields}


def messages_body(*messages, **fields):
    """Return a body of the Messages API without a model; without messages it has one of the user."""
    return {"max_tokens": 100, "messages": list(messages or [user()]), **fields}
