"""The container of a code execution that waits for the client's results."""

from __future__ import annotations

import json

from holdfast.providers.answers.answer_stream import AnswerStream
from holdfast.providers.anthropic.container import name_container, read_request_container
from holdfast.providers.anthropic.response import parse_answer_body
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.sse import StreamEvent
from holdfast.providers.fix.fix_request import fix_request

RUN = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {"code": "ls()"}}
CALL = {"type": "tool_use", "id": "t1", "name": "ls", "input": {}}
CALLER = {"type": "code_execution_20260120", "tool_id": "s1"}
GONE = "container_0"
TOOLS = [{"type": CALLER["type"], "name": "code_execution"}, {"name": "ls", "input_schema": {"type": "object"}}]


def build_body(*blocks, **fields):
    """Return a request that answers the call in an answer of ``blocks``."""
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [*blocks]},
        {"role": "user", "content": [result]},
    ]
    body = {"model": "claude-opus-4-8", "max_tokens": 9, "tools": TOOLS, "messages": messages, **fields}
    return json.dumps(body).encode()


def test_name_container_names_it_while_code_waits():
    """The id of the last answer is added, and nothing else changes."""
    body = build_body(RUN, {**CALL, "caller": CALLER})
    carried = json.loads(name_container(body, "container_1"))
    assert carried.pop("container") == "container_1"
    assert carried == json.loads(body)


def test_name_container_leaves_other_requests():
    """A request that names a container, waits for no code, or follows an answer without a container keeps its bytes."""
    named = build_body(RUN, CALL, container="container_2")
    ended = build_body(RUN, {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": {}}, CALL)
    for body in (named, ended, build_body(CALL)):
        assert name_container(body, "container_1") is body
    waiting = build_body(RUN, CALL)
    assert name_container(waiting, "") is waiting


def test_name_container_leaves_out_an_expired_one():
    """The field goes, or the id beside skills; another container takes its place if code waits there."""
    skills = [{"type": "anthropic", "skill_id": "pdf"}]
    for given, left in ((GONE, {}), ({"id": GONE, "skills": skills}, {"container": {"skills": skills}})):
        body = build_body(RUN, CALL, container=given)
        assert read_request_container(body) == GONE
        assert json.loads(name_container(body, "", (GONE,))) == json.loads(build_body(RUN, CALL)) | left
    body = build_body(RUN, CALL, container=GONE)
    assert json.loads(name_container(body, "container_1", (GONE,)))["container"] == "container_1"
    assert name_container(body, "container_1", ("container_3",)) is body


def test_fix_request_ends_a_run_without_a_container():
    """A text with the code stands for the run, and its calls become ordinary ones; the client's result stays."""
    result = fix_request(build_body(RUN, {**CALL, "caller": CALLER}), "anthropic")
    assert result.is_valid
    answer = json.loads(result.body)["messages"][1]["content"]
    assert "ls()" in answer[0]["text"]
    assert answer[1] == CALL
    assert fix_request(result.body, "anthropic").body is result.body


def test_parse_answer_keeps_the_container():
    """The container is read from a body, and from the end of a stream."""
    container = {"id": "container_1", "expires_at": "2026-12-01T00:00:00Z"}
    message = {"id": "m", "role": "assistant", "model": "claude-opus-4-8", "content": [RUN, CALL]}
    fields = parse_body_fields(json.dumps({**message, "container": container}).encode())
    assert parse_answer_body(fields).container == "container_1"
    stream = AnswerStream("anthropic")
    delta = {"stop_reason": "tool_use", "container": container}
    for event in (
        {"type": "message_start", "message": {**message, "content": []}},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ):
        stream.add_event(StreamEvent(json.dumps(event).encode()))
    assert stream.build_answer().container == "container_1"
