"""Decisions about a part of a message apply again when the client splits or joins that message later."""

from __future__ import annotations

import pytest
from sample_entries import SAMPLE_KEY

from holdfast.engine.engine import Engine
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

LONG = "\n".join(f"{line} kelp {line * 7_919 % 9_973}" for line in range(5_000))
"""A result that is long enough to be spilled."""
TASK, SHORT = "Read both; never touch kelp.toml.", "short"
IDS = ("c1", "c2")


def build_anthropic_body(results, *, are_separate):
    """Return an Anthropic body with both results in one message, or in separate ones."""
    uses = [{"type": "tool_use", "id": id_, "name": "read", "input": {"p": id_}} for id_ in IDS]
    blocks = [
        {"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in zip(IDS, results, strict=True)
    ]
    contents = [[block] for block in blocks] if are_separate else [blocks]
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    conversation = [{"role": "user", "content": TASK}, {"role": "assistant", "content": uses}]
    conversation += [{"role": "user", "content": content} for content in contents]
    return {"model": STRICTEST_MODELS["anthropic"], "max_tokens": 900, "tools": tools, "messages": conversation}


def build_gemini_body(results, *, are_separate):
    """Return a Gemini body with both results in one content, or in separate ones."""
    calls = [{"functionCall": {"id": id_, "name": "read", "args": {"p": id_}}} for id_ in IDS]
    parts = [
        {"functionResponse": {"id": id_, "name": "read", "response": {"output": text}}}
        for id_, text in zip(IDS, results, strict=True)
    ]
    contents = [[part] for part in parts] if are_separate else [parts]
    conversation = [{"role": "user", "parts": [{"text": TASK}]}, {"role": "model", "parts": calls}]
    return {"contents": [*conversation, *({"role": "user", "parts": content} for content in contents)]}


BODIES = {
    "anthropic": (build_anthropic_body, "messages", "assistant", "content"),
    "gemini": (build_gemini_body, "contents", "model", "parts"),
}


def add_turn(body, api, are_separate):
    """Return ``body`` with an answer and two user texts behind it, in one message or in two."""
    _, field, role, inner = BODIES[api]
    words = [{"type": "text", "text": text} if api == "anthropic" else {"text": text} for text in ("Well.", "Go on.")]
    contents = [[word] for word in words] if are_separate else [words]
    answer = {"role": role, inner: [{"type": "text", "text": "first"} if api == "anthropic" else {"text": "first"}]}
    return body | {field: [*body[field], answer, *({"role": "user", inner: content} for content in contents)]}


@pytest.mark.parametrize("is_separate_later", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("is_separate_first", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("long_result_index", [0, 1])
@pytest.mark.parametrize("api", BODIES)
def test_session_run_keeps_a_spill_when_the_client_splits_or_joins_messages(
    api, long_result_index, is_separate_first, is_separate_later
):
    """Results sent together and later one by one, or the other way round, stay spilled, and each request is valid."""
    results = [LONG, SHORT] if not long_result_index else [SHORT, LONG]
    build_body = BODIES[api][0]
    upstream = ProviderUpstream(
        Provider(ProviderSettings(), [ScriptedAnswer("first"), ScriptedAnswer("second"), ScriptedAnswer("third")])
    )

    async def run_scenario():
        async with Engine.open(MemoryStore(), upstream=upstream, api=api, model=STRICTEST_MODELS[api]) as engine:
            session = await engine.session(SAMPLE_KEY)
            answers = []
            bodies = [
                build_body(results, are_separate=is_separate_first),
                add_turn(build_body(results, are_separate=is_separate_later), api, is_separate_first),
            ]
            for body in [
                *bodies,
                add_turn(build_body(results, are_separate=is_separate_first), api, is_separate_later),
            ]:
                async with session.run(body) as run:
                    async for _ in run:
                        pass
                answers.append(run.answer.message.text)
            return answers

    assert run_on_fake_clock(run_scenario) == ["first", "second", "third"]
    for sent in upstream.sent:
        assert TASK in sent.body.decode()
        assert SHORT in sent.body.decode()
    last = upstream.sent[-1].body
    assert b"Go on." in last
    assert len(last) < len(LONG)
