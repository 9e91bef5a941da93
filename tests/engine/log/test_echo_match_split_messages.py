"""What was sent together once and comes back one by one: a decision about a part of it is applied again."""

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
"""So long that it is spilled."""
TASK, SHORT = "Read both; never touch kelp.toml.", "short"
IDS = ("c1", "c2")


def messages(results, *, apart):
    """Return a body of Messages with both results in one message, or ``apart``."""
    uses = [{"type": "tool_use", "id": id_, "name": "read", "input": {"p": id_}} for id_ in IDS]
    blocks = [
        {"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in zip(IDS, results, strict=True)
    ]
    told = [[block] for block in blocks] if apart else [blocks]
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    said = [{"role": "user", "content": TASK}, {"role": "assistant", "content": uses}]
    said += [{"role": "user", "content": one} for one in told]
    return {"model": STRICTEST_MODELS["anthropic"], "max_tokens": 900, "tools": tools, "messages": said}


def gemini(results, *, apart):
    """Return a body of Gemini with both results in one content, or ``apart``."""
    calls = [{"functionCall": {"id": id_, "name": "read", "args": {"p": id_}}} for id_ in IDS]
    parts = [
        {"functionResponse": {"id": id_, "name": "read", "response": {"output": text}}}
        for id_, text in zip(IDS, results, strict=True)
    ]
    told = [[part] for part in parts] if apart else [parts]
    said = [{"role": "user", "parts": [{"text": TASK}]}, {"role": "model", "parts": calls}]
    return {"contents": [*said, *({"role": "user", "parts": one} for one in told)]}


BODIES = {"anthropic": (messages, "messages", "assistant", "content"), "gemini": (gemini, "contents", "model", "parts")}


def further(body, api, apart_words):
    """Return ``body`` with an answer and more words of the user behind it: in one message, or two."""
    _, field, role, inner = BODIES[api]
    words = [{"type": "text", "text": text} if api == "anthropic" else {"text": text} for text in ("Well.", "Go on.")]
    told = [[one] for one in words] if apart_words else [words]
    answer = {"role": role, inner: [{"type": "text", "text": "first"} if api == "anthropic" else {"text": "first"}]}
    return body | {field: [*body[field], answer, *({"role": "user", inner: one} for one in told)]}


@pytest.mark.parametrize("then", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("first", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("api", BODIES)
def test_what_was_spilled_stays_so(api, place, first, then):
    """Results and words sent together, then one by one, or the other way: each request is made, small and valid."""
    results = [LONG, SHORT] if not place else [SHORT, LONG]
    make = BODIES[api][0]
    upstream = ProviderUpstream(
        Provider(ProviderSettings(), [ScriptedAnswer("first"), ScriptedAnswer("second"), ScriptedAnswer("third")])
    )

    async def go():
        async with Engine.open(MemoryStore(), upstream=upstream, api=api, model=STRICTEST_MODELS[api]) as engine:
            session = await engine.session(SAMPLE_KEY)
            told = []
            bodies = [make(results, apart=first), further(make(results, apart=then), api, first)]
            for body in [*bodies, further(make(results, apart=first), api, then)]:
                async with session.run(body) as going:
                    async for _ in going:
                        pass
                told.append(going.answer.message.text)
            return told

    assert run_on_fake_clock(go) == ["first", "second", "third"]
    for sent in upstream.sent:
        assert TASK in sent.body.decode()
        assert SHORT in sent.body.decode()
    last = upstream.sent[-1].body
    assert b"Go on." in last
    assert len(last) < len(LONG)
