"""Worked cases of opencode about the messages sent to a provider; planned and applied where the corpus is present."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, Thinking, ToolCall, ToolResult
from holdfast.normalize.projection import build_messages_to_send
from holdfast.normalize.roles import ACKNOWLEDGEMENT_TEXT
from holdfast.providers.requests.request_body import build_request_body

_FILE = Path(__file__).parents[3] / "shared" / "cases" / "pi-opencode.json"

DEVIATIONS = {
    "oc-tf-mistral-1": "an id is a digest of the whole id: ids with the same start stay different; cutting merges them",
    "oc-tf-mistral-2": "as oc-tf-mistral-1",
    "oc-tf-mistral-3": "as oc-tf-mistral-1",
    "oc-tf-anthropic-1": "an answer is sent in its order: no documented rule of the API forbids text after a call",
    "oc-tf-cache-1": "one breakpoint after the setup and one at the tail cache the same; clients may set the others",
}
"""Cases that must differ from what is written, and why."""
MISTRAL, CLAUDE = get_target("openai-chat", "mistral-large-latest"), get_target("anthropic", "claude-sonnet-4-5")


def _send(messages, target):
    """Return the messages that a request sends for a conversation."""
    return apply(messages, plan(messages, target))


def _build_call_conversation(call):
    """Return a conversation with one call and its result."""
    result = ToolResult(call.id, call.name, (Text("ok"),))
    return [Message.from_text("user", "go"), Message("assistant", (call,)), Message("tool", (result,))]


def _send_mistral_id(case_input):
    [call] = [
        call
        for message in _send(_build_call_conversation(ToolCall(case_input, "read", "{}")), MISTRAL)
        for call in message.calls
    ]
    assert len(call.id) == 9
    assert call.id.isalnum()
    return call.id


def _send_message_after_result(_case_input):
    """Return the messages after the first user message in the terms of the case."""
    sent = _send([*_build_call_conversation(ToolCall("c1", "read", "{}")), Message.from_text("user", "next")], MISTRAL)
    descriptions = {"tool": "tool(result)", "user": 'user("next")'}
    return [
        descriptions.get(
            message.role,
            "assistant(tool-call)"
            if message.calls
            else f'assistant("{_OPENCODE_TEXTS.get(message.text, message.text)}")',
        )
        for message in sent[1:]
    ]


_OPENCODE_TEXTS = {ACKNOWLEDGEMENT_TEXT: "Done."}
"""Holdfast's filler between a result and a user message, and opencode's text for it."""


def _build_part(description):
    kind, _, text = description.partition(" ")
    quoted = text.strip('"')
    return {"text": Text(quoted), "reasoning": Thinking(quoted), "tool-call": ToolCall(quoted, "read", "{}")}[kind]


def _build_messages(case_input):
    """Return the messages of a case, each call with its result."""
    messages = []
    for source in case_input:
        content = source["content"]
        parts = (Text(content),) if isinstance(content, str) else tuple(map(_build_part, content))
        messages.append(Message(source["role"], parts))
        results = [ToolResult(call.id, call.name, (Text("ok"),)) for call in messages[-1].calls]
        messages += [Message("tool", tuple(results))] * bool(results)
    return messages


def _describe_part(part):
    if isinstance(part, ToolCall):
        return f"tool-call {part.id}"
    return f'text "{part.text}"' if isinstance(part, Text) else f'reasoning "{part.text}"'


def _send_to_anthropic(case_input):
    """Return the sent messages of a case without results and without a first user message that was added."""
    sent = [message for message in _send(_build_messages(case_input), CLAUDE) if message.role != "tool"]
    sent = sent[1:] if case_input[0]["role"] == "assistant" else sent
    return [
        {
            "role": message.role,
            "content": message.text if message.role == "user" else [_describe_part(part) for part in message.parts],
        }
        for message in sent
    ]


def _list_cache_breakpoints(case_input):
    """Return the texts that carry a cache breakpoint in the request body."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    new_plan = plan([Message.from_text(roles[text[0]], text) for text in case_input], CLAUDE)
    body = json.loads(
        build_request_body("anthropic", CLAUDE.model, build_messages_to_send(new_plan), options=new_plan.options)
    )
    blocks = [
        *body["system"],
        *(block for message in body["messages"] for block in message["content"] if isinstance(block, dict)),
    ]
    return {"cache_marked": [block["text"] for block in blocks if "cache_control" in block]}


_ADAPTERS = {
    "oc-tf-mistral-4": _send_message_after_result,
    "oc-tf-cache-1": _list_cache_breakpoints,
    "oc-tf-anthropic-1": _send_to_anthropic,
    "oc-tf-anthropic-2": _send_to_anthropic,
}


def _load_cases():
    cases = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else []
    return [case for case in cases if case["area"] == "opencode.transform"]


if _load_cases():

    @pytest.mark.parametrize("case", _load_cases(), ids=lambda case: case["id"])
    def test_opencode_transform_case_matches_or_deviates_on_purpose(case):
        """Each case gives the expected result, and each deviation a different one."""
        found = _ADAPTERS.get(case["id"], _send_mistral_id)(case["input"])
        assert (found == case["expect"]) is (case["id"] not in DEVIATIONS), found

    def test_deviations_name_existing_cases():
        """Each deviation names an existing case."""
        assert DEVIATIONS.keys() <= {case["id"] for case in _load_cases()}
