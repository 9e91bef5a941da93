"""The worked cases of opencode about messages on their way to a provider, where they are there: planned and applied."""

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
    "oc-tf-mistral-1": "an id is a digest of the whole: two that begin alike stay two, where cutting makes them one",
    "oc-tf-mistral-2": "as oc-tf-mistral-1",
    "oc-tf-mistral-3": "as oc-tf-mistral-1",
    "oc-tf-anthropic-1": "an answer goes out in its order: no written rule of the API forbids words behind a call",
    "oc-tf-cache-1": "one breakpoint behind the frame and one at the tail hold the same; clients may set the others",
}
"""Cases that must not come out as written, and why."""
MISTRAL, CLAUDE = get_target("openai-chat", "mistral-large-latest"), get_target("anthropic", "claude-sonnet-4-5")


def _sent(said, where):
    """Return what a request shows of a conversation."""
    return apply(said, plan(said, where))


def _answered(call):
    """Return a conversation with one call and its result."""
    result = ToolResult(call.id, call.name, (Text("ok"),))
    return [Message.from_text("user", "go"), Message("assistant", (call,)), Message("tool", (result,))]


def _mistral_id(given):
    [call] = [call for message in _sent(_answered(ToolCall(given, "read", "{}")), MISTRAL) for call in message.calls]
    assert len(call.id) == 9
    assert call.id.isalnum()
    return call.id


def _after_result(_given):
    """Return the messages behind the user's first, in the words of the case; what stands between is of ours."""
    sent = _sent([*_answered(ToolCall("c1", "read", "{}")), Message.from_text("user", "next")], MISTRAL)
    named = {"tool": "tool(result)", "user": 'user("next")'}
    return [
        named.get(one.role, "assistant(tool-call)" if one.calls else f'assistant("{_OURS.get(one.text, one.text)}")')
        for one in sent[1:]
    ]


_OURS = {ACKNOWLEDGEMENT_TEXT: "Done."}
"""What stands between a result and a user, and what opencode says there."""


def _part(told):
    kind, _, text = told.partition(" ")
    words = text.strip('"')
    return {"text": Text(words), "reasoning": Thinking(words), "tool-call": ToolCall(words, "read", "{}")}[kind]


def _messages(given):
    """Return the messages of a case, each call with its result."""
    said = []
    for one in given:
        content = one["content"]
        parts = (Text(content),) if isinstance(content, str) else tuple(map(_part, content))
        said.append(Message(one["role"], parts))
        results = [ToolResult(call.id, call.name, (Text("ok"),)) for call in said[-1].calls]
        said += [Message("tool", tuple(results))] * bool(results)
    return said


def _told(part):
    if isinstance(part, ToolCall):
        return f"tool-call {part.id}"
    return f'text "{part.text}"' if isinstance(part, Text) else f'reasoning "{part.text}"'


def _anthropic(given):
    """Return what is sent of the messages of a case, without results and without what must stand first."""
    sent = [one for one in _sent(_messages(given), CLAUDE) if one.role != "tool"]
    sent = sent[1:] if given[0]["role"] == "assistant" else sent
    return [
        {"role": one.role, "content": one.text if one.role == "user" else [_told(part) for part in one.parts]}
        for one in sent
    ]


def _cache_marks(given):
    """Return which messages carry a breakpoint in the body that is sent."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    made = plan([Message.from_text(roles[text[0]], text) for text in given], CLAUDE)
    told = json.loads(build_request_body("anthropic", CLAUDE.model, build_messages_to_send(made), options=made.options))
    blocks = [
        *told["system"],
        *(block for one in told["messages"] for block in one["content"] if isinstance(block, dict)),
    ]
    return {"cache_marked": [block["text"] for block in blocks if "cache_control" in block]}


_ADAPTERS = {
    "oc-tf-mistral-4": _after_result,
    "oc-tf-cache-1": _cache_marks,
    "oc-tf-anthropic-1": _anthropic,
    "oc-tf-anthropic-2": _anthropic,
}


def _cases():
    every = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else []
    return [case for case in every if case["area"] == "opencode.transform"]


if _cases():

    @pytest.mark.parametrize("case", _cases(), ids=lambda case: case["id"])
    def test_case(case):
        """A case comes out as it is written; one we deviate from on purpose does not."""
        found = _ADAPTERS.get(case["id"], _mistral_id)(case["input"])
        assert (found == case["expect"]) is (case["id"] not in DEVIATIONS), found

    def test_deviations_are_cases():
        """Every deviation names a case that is there."""
        assert DEVIATIONS.keys() <= {case["id"] for case in _cases()}
