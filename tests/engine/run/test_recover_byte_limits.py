"""Bodies of too many bytes: the newest pictures that fit stay, and a limit that was named is kept to from then on."""

from __future__ import annotations

import json
import struct
from base64 import b64encode

import pytest
from sample_entries import SAMPLE_KEY

from holdfast.engine.engine import Engine
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider.calls import RefusalReply, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

BYTES = 1_000_000
"""What the gateway takes."""
HEAD = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 1_000, 800)
DATA = {name: b64encode(HEAD + name.encode() * 225_000).decode() for name in "ABCDEFGH"}
"""Six of these are too many, three are not."""
REFUSALS = {
    "bare": RefusalReply(413, "request_too_large", "Request exceeds the maximum size"),
    "named": RefusalReply(400, "invalid_request_error", f"Request payload size exceeds the limit: {BYTES} bytes."),
}


class Narrow:
    """A gateway that takes no body of more than ``BYTES``."""

    def __init__(self, provider, refusal) -> None:
        self.provider, self.refusal = provider, refusal
        self.settings, self.requests = provider.settings, provider.requests
        self.refused, self.most = 0, BYTES

    def answer(self, asked):
        """Return the provider's answer, or a refusal of what is too large."""
        if len(asked.body) <= self.most:
            return self.provider.answer(asked)
        self.refused += 1
        return self.refusal


def picture(name):
    source = {"type": "base64", "media_type": "image/png", "data": DATA[name]}
    return {"type": "image", "source": source}


def told(names):
    return {"role": "user", "content": [*map(picture, names), {"type": "text", "text": f"Look at {names}."}]}


def given_back(names, id_="t"):
    calls = [{"type": "tool_use", "id": f"{id_}{name}", "name": "look", "input": {}} for name in names]
    results = [{"type": "tool_result", "tool_use_id": f"{id_}{name}", "content": [picture(name)]} for name in names]
    return [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]


SEEN = {"user": [told("ABCDEF")], "tool": [{"role": "user", "content": "Look."}, *given_back("ABCDEF")]}


def asked(*bodies, refusal, most=BYTES):
    """Return the gateway, and which pictures each request showed that was answered."""
    gateway = Narrow(Provider(ProviderSettings(), [ScriptedAnswer("fine")] * len(bodies)), refusal)
    gateway.most = most
    upstream = ProviderUpstream(gateway)

    async def go():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api="anthropic", model=STRICTEST_MODELS["anthropic"]
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            for body in bodies:
                async with session.run(body) as going:
                    async for _ in going:
                        pass

    run_on_fake_clock(go)
    shown = [[name for name in DATA if DATA[name].encode() in sent.body] for sent in upstream.sent]
    return gateway, [names for names, sent in zip(shown, upstream.sent, strict=True) if len(sent.body) <= most]


def body(*said):
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    return json.dumps(
        {"model": STRICTEST_MODELS["anthropic"], "max_tokens": 900, "tools": tools, "messages": said}
    ).encode()


@pytest.mark.parametrize("who", SEEN)
@pytest.mark.parametrize("how", REFUSALS)
def test_the_newest_that_fit_stay(who, how):
    """Six unseen screenshots are too many: the older go, the newest are shown, by a limit that is named or a guess."""
    gateway, [shown] = asked(body(*SEEN[who]), refusal=REFUSALS[how])
    assert gateway.refused == 1
    assert shown == (["D", "E", "F"] if how == "named" else ["E", "F"])


def test_a_limit_that_was_named_is_kept_to():
    """What a refusal named no later request of the session has more of, so none is refused again."""
    first = SEEN["tool"]
    then = [*first, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "More."}]
    then += given_back("GHA", "u")
    gateway, [_, shown] = asked(body(*first), body(*then), refusal=REFUSALS["named"])
    assert gateway.refused == 1
    assert shown == ["A", "G", "H"]


NAMED = RefusalReply(400, "invalid_request_error", "Request payload size exceeds the limit: 200000 bytes.")


@pytest.mark.parametrize("refusal", [REFUSALS["bare"], NAMED], ids=["bare", "named"])
def test_a_limit_on_words_is_met_once(refusal):
    """Words alone that had too many bytes were too many words: a named limit is kept to as well as one that is not."""
    said, bodies = [], []
    for turn in range(20):
        said.append({"role": "user", "content": f"{turn} " + "kelp and more " * 3_000})
        bodies.append(body(*said))
        said.append({"role": "assistant", "content": "fine"})
    gateway, answered = asked(*bodies, refusal=refusal, most=200_000)
    assert len(answered) == 20
    assert 1 <= gateway.refused <= 2


def test_a_limit_that_a_larger_request_disproves_is_forgotten():
    """A gateway that takes more than it named once takes all pictures again."""
    gateway = Narrow(Provider(ProviderSettings(), [ScriptedAnswer("fine")] * 9), NAMED)
    upstream, shown = ProviderUpstream(gateway), []
    gateway.most = 200_000

    async def go():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api="anthropic", model=STRICTEST_MODELS["anthropic"]
        ) as engine:
            session, said = await engine.session(SAMPLE_KEY), []
            for name in "ABCD":
                said += [told(name)]
                async with session.run(body(*said)) as going:
                    async for _ in going:
                        pass
                shown.append(sum(one.encode() in upstream.sent[-1].body for one in DATA.values()))
                said += [{"role": "assistant", "content": "fine"}]
                gateway.most = 50_000_000
            return session.journal.state.usage.learned_limits.max_body_bytes

    assert run_on_fake_clock(go) == 0
    assert shown[0] == 0
    assert shown[1:] == sorted(shown[1:])
    assert shown[-1] >= 3
