"""Recovery from byte limits: the newest images that fit stay, and a named limit is kept from then on."""

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
"""The limit of the gateway."""
HEAD = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 1_000, 800)
DATA = {name: b64encode(HEAD + name.encode() * 225_000).decode() for name in "ABCDEFGH"}
"""Image data; six images exceed the limit, three do not."""
REFUSALS = {
    "bare": RefusalReply(413, "request_too_large", "Request exceeds the maximum size"),
    "named": RefusalReply(400, "invalid_request_error", f"Request payload size exceeds the limit: {BYTES} bytes."),
}


class ByteLimitGateway:
    """A gateway that refuses bodies of more than ``max_bytes``."""

    def __init__(self, provider, refusal) -> None:
        self.provider, self.refusal = provider, refusal
        self.settings, self.requests = provider.settings, provider.requests
        self.refused_count, self.max_bytes = 0, BYTES

    def answer(self, request):
        """Return the provider's answer, or the refusal of a body that is too large."""
        if len(request.body) <= self.max_bytes:
            return self.provider.answer(request)
        self.refused_count += 1
        return self.refusal


def build_image_block(name):
    source = {"type": "base64", "media_type": "image/png", "data": DATA[name]}
    return {"type": "image", "source": source}


def build_user_message(names):
    return {"role": "user", "content": [*map(build_image_block, names), {"type": "text", "text": f"Look at {names}."}]}


def build_tool_turn(names, id_="t"):
    calls = [{"type": "tool_use", "id": f"{id_}{name}", "name": "look", "input": {}} for name in names]
    results = [
        {"type": "tool_result", "tool_use_id": f"{id_}{name}", "content": [build_image_block(name)]} for name in names
    ]
    return [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]


MESSAGES = {
    "user": [build_user_message("ABCDEF")],
    "tool": [{"role": "user", "content": "Look."}, *build_tool_turn("ABCDEF")],
}


def run_bodies(*bodies, refusal, max_bytes=BYTES):
    """Run the bodies; return the gateway and the images of each answered request."""
    gateway = ByteLimitGateway(Provider(ProviderSettings(), [ScriptedAnswer("fine")] * len(bodies)), refusal)
    gateway.max_bytes = max_bytes
    upstream = ProviderUpstream(gateway)

    async def run_scenario():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api="anthropic", model=STRICTEST_MODELS["anthropic"]
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            for body in bodies:
                async with session.run(body) as run:
                    async for _ in run:
                        pass

    run_on_fake_clock(run_scenario)
    images_by_request = [[name for name in DATA if DATA[name].encode() in sent.body] for sent in upstream.sent]
    return gateway, [
        names for names, sent in zip(images_by_request, upstream.sent, strict=True) if len(sent.body) <= max_bytes
    ]


def build_body(*messages):
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    return json.dumps(
        {"model": STRICTEST_MODELS["anthropic"], "max_tokens": 900, "tools": tools, "messages": messages}
    ).encode()


@pytest.mark.parametrize("role", MESSAGES)
@pytest.mark.parametrize("refusal_name", REFUSALS)
def test_recover_keeps_the_newest_images_that_fit(role, refusal_name):
    """Of six unseen screenshots the older ones are dropped, by a limit that the refusal names or by a guess."""
    gateway, [shown] = run_bodies(build_body(*MESSAGES[role]), refusal=REFUSALS[refusal_name])
    assert gateway.refused_count == 1
    assert shown == (["D", "E", "F"] if refusal_name == "named" else ["E", "F"])


def test_recover_keeps_to_a_named_byte_limit():
    """Later requests of the session stay below a limit that a refusal named, so none is refused again."""
    first = MESSAGES["tool"]
    later = [*first, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "More."}]
    later += build_tool_turn("GHA", "u")
    gateway, [_, shown] = run_bodies(build_body(*first), build_body(*later), refusal=REFUSALS["named"])
    assert gateway.refused_count == 1
    assert shown == ["A", "G", "H"]


SMALL_LIMIT_REFUSAL = RefusalReply(
    400, "invalid_request_error", "Request payload size exceeds the limit: 200000 bytes."
)


@pytest.mark.parametrize("refusal", [REFUSALS["bare"], SMALL_LIMIT_REFUSAL], ids=["bare", "named"])
def test_recover_learns_a_byte_limit_on_text_from_one_or_two_refusals(refusal):
    """A text-only request with too many bytes has too many tokens, so named and unnamed limits are both kept."""
    messages, bodies = [], []
    for turn in range(20):
        messages.append({"role": "user", "content": f"{turn} " + "kelp and more " * 3_000})
        bodies.append(build_body(*messages))
        messages.append({"role": "assistant", "content": "fine"})
    gateway, answered = run_bodies(*bodies, refusal=refusal, max_bytes=200_000)
    assert len(answered) == 20
    assert 1 <= gateway.refused_count <= 2


def test_recover_forgets_a_byte_limit_that_a_larger_request_disproves():
    """A gateway that accepts more than its named limit gets all images again."""
    gateway = ByteLimitGateway(Provider(ProviderSettings(), [ScriptedAnswer("fine")] * 9), SMALL_LIMIT_REFUSAL)
    upstream, image_counts = ProviderUpstream(gateway), []
    gateway.max_bytes = 200_000

    async def run_scenario():
        async with Engine.open(
            MemoryStore(), upstream=upstream, api="anthropic", model=STRICTEST_MODELS["anthropic"]
        ) as engine:
            session, messages = await engine.session(SAMPLE_KEY), []
            for name in "ABCD":
                messages += [build_user_message(name)]
                async with session.run(build_body(*messages)) as run:
                    async for _ in run:
                        pass
                image_counts.append(sum(data.encode() in upstream.sent[-1].body for data in DATA.values()))
                messages += [{"role": "assistant", "content": "fine"}]
                gateway.max_bytes = 50_000_000
            return session.journal.state.usage.learned_limits.max_body_bytes

    assert run_on_fake_clock(run_scenario) == 0
    assert image_counts[0] == 0
    assert image_counts[1:] == sorted(image_counts[1:])
    assert image_counts[-1] >= 3
