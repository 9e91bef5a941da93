"""The container of code that still runs: a request that answers a call of that code has to name it.

While a code execution waits for a client's tool, the answer ends with the call and names the container it runs in. The
next request is refused without it: page "Programmatic tool calling" (2026-08-21); anthropic-sdk-python#1801
(2026-08-05).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from holdfast.providers.api_spec import ContainerFormat
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_fields, read_json_text
from holdfast.providers.common.json.raw_json import encode_json, remove_json_fields, replace_json_fields

_CODE_EXECUTION = "code_execution"


class PendingRun(NamedTuple):
    """A code execution without its result: the index of its message, of its block, and its id."""

    message_index: int
    block_index: int
    id: str


def find_pending_runs(messages: Sequence[Any]) -> list[PendingRun]:
    """Find the code executions that wait for the tool results at the end of decoded ``messages``."""
    last_index = len(messages) - 1
    if last_index < 1 or not any(block.get("type") == "tool_result" for _, block in _iter_blocks(messages[-1])):
        return []
    # The results may stand in several messages of the user, and the answer in several of the assistant.
    while last_index >= 0 and _get_role(messages[last_index]) == "user":
        last_index -= 1
    runs: list[PendingRun] = []
    finished_ids: set[str] = set()
    for message_index in range(last_index, -1, -1):
        if _get_role(messages[message_index]) != "assistant":
            break
        for block_index, block in _iter_blocks(messages[message_index]):
            if block.get("type") == "server_tool_use" and str(block.get("name")).endswith(_CODE_EXECUTION):
                runs.append(PendingRun(message_index, block_index, str(block.get("id"))))
            elif str(block.get("type")).endswith("_tool_result"):
                finished_ids.add(str(block.get("tool_use_id")))
    return [run for run in runs if run.id not in finished_ids]


def _get_role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _iter_blocks(message: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    content = message.get("content") if isinstance(message, dict) else None
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, dict):
            yield index, block


def read_answer_container(fields: Mapping[str, Raw]) -> str:
    """Return the id of the container that an answer names, or an empty string."""
    return read_json_text(read_json_fields(fields.get("container")).get("id"))


def read_request_container(body: bytes) -> str:
    """Return the id of the container that a request names, or an empty string."""
    if b'"container"' not in body:
        return ""
    return _read_container_id(parse_body_fields(body).get("container"))


def _read_container_id(raw: Raw | None) -> str:
    """Return the id in a ``container``: a string, or an object with ``id`` beside the skills that it loads."""
    return read_json_text(raw) or read_json_text(read_json_fields(raw).get("id"))


def name_container(body: bytes, current: str, expired: Collection[str] = ()) -> bytes:
    """Return ``body`` with the ``current`` container if it needs one and names none, else the same bytes.

    One of the ``expired`` containers is left out before; skills beside its id stay.
    """
    body = _drop_expired_container(body, expired)
    if not current or current in expired or _CODE_EXECUTION.encode() not in body:
        return body
    fields = parse_body_fields(body)
    if bytes(fields.get("container", b"null")) != b"null":
        return body
    messages = msgspec.json.decode(fields.get("messages", b"[]"))
    if not isinstance(messages, list) or not find_pending_runs(messages):
        return body
    return replace_json_fields(body, fields, {"container": encode_json(current)})


def _drop_expired_container(body: bytes, expired: Collection[str]) -> bytes:
    if not expired or read_request_container(body) not in expired:
        return body
    fields = parse_body_fields(body)
    container = read_json_fields(fields["container"])
    container.pop("id", None)
    if container:
        return replace_json_fields(body, fields, {"container": encode_json(container)})
    return remove_json_fields(body, fields, ("container",))


CONTAINERS = ContainerFormat(read_request_container, name_container)
"""How requests name the container of running code."""
