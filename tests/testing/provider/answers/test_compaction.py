"""Compactions of the strict provider: on demand, at a threshold, by an endpoint, and their checks in later requests."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.testing.provider.calls import CompactReply, ModelAnswer, RefusalReply, ScriptedAnswer, TokenCountReply
from holdfast.testing.provider.client import ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

WORDS = ProviderSettings(tokenizer="words")
ON_DEMAND_BETA = "compact-2026-09-04"
CONTEXT_MANAGEMENT_BETA = "compact-2026-01-12"
SCRIPT = [
    ScriptedAnswer("", (("ls", {}),), "hm"),
    ScriptedAnswer("done", (), "ha"),
    ScriptedAnswer("", (("ls", {}),), "so"),
    ScriptedAnswer("end"),
    ScriptedAnswer("more"),
]
LONG = "lorem ipsum " * 400


def build_thinking_client():
    """Return a client with two turns of thinking and calls."""
    client = ProviderClient(Provider(WORDS, SCRIPT), "anthropic", tools=["ls"], thinking={"type": "adaptive"})
    client.send_results(client.send_user_text("go " * 300))
    client.send_results(client.send_user_text("on " * 50))
    return client


def decode_block(reply):
    assert isinstance(reply, ModelAnswer), reply
    return msgspec.json.decode(reply.parts[0].raw)


def compact_first_messages(client, count):
    """Compact the first ``count`` messages, put the block in their place, and return the reply."""
    full_body = client.body
    client.body = full_body | {"messages": full_body["messages"][:count], "compaction": {"type": "summarize"}}
    reply = client.send_history(anthropic_beta=ON_DEMAND_BETA)
    client.body = full_body | {
        "messages": [{"role": "assistant", "content": [decode_block(reply)]}, *full_body["messages"][count:]]
    }
    return reply


# -- Anthropic, on demand ----------------------------------------------------------------------------------------------


def test_on_demand_compaction_returns_one_signed_block():
    """The answer is only the block, its usage is counted apart, and the script continues as if nothing was said."""
    client = build_thinking_client()
    reply = compact_first_messages(client, 4)
    block = decode_block(reply)
    assert (reply.stop, block["type"], bool(block["signature"])) == ("compaction", "compaction", True)
    assert (reply.usage.total_input, reply.usage.output) == (0, 0)
    assert reply.compaction.total_input > 50
    assert reply.compaction.output > 0
    after = client.send_user_text("next", anthropic_beta=ON_DEMAND_BETA)
    assert (after.parts[0].text, after.usage.total_input < reply.compaction.total_input) == ("more", True)


def test_thinking_behind_a_compaction_stays_valid_with_the_same_setup():
    """Kept thinking passes behind the block that replaces its prefix, until the system prompt changes."""
    client = build_thinking_client()
    compact_first_messages(client, 4)
    assert any(block.get("type") == "thinking" for block in client.history[2]["content"])
    assert isinstance(client.send_user_text("next", anthropic_beta=ON_DEMAND_BETA), ModelAnswer)
    client.body["system"] = "other"
    reply = client.send_user_text("next", anthropic_beta=ON_DEMAND_BETA)
    assert isinstance(reply, RefusalReply)
    assert "bound to a different conversation" in reply.message


def test_on_demand_compaction_of_a_compaction_is_accepted():
    """The second compaction summarizes the first, and later thinking still passes."""
    client = build_thinking_client()
    compact_first_messages(client, 4)
    compact_first_messages(client, 2)
    assert isinstance(client.send_user_text("next", anthropic_beta=ON_DEMAND_BETA), ModelAnswer)


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("content", "I was never said", "compaction_content_mismatch"),
        ("signature", "c2ln", "compaction_signature_invalid"),
    ],
)
def test_changed_compaction_block_is_refused_with_its_code(key, value, code):
    """A block with another text or signature is refused with the error code of that change."""
    client = build_thinking_client()
    compact_first_messages(client, 4)
    client.history[0]["content"][0][key] = value
    reply = client.send_user_text("next", anthropic_beta=ON_DEMAND_BETA)
    assert (reply.status, reply.details.get("error_code")) == (400, code)


def test_misplaced_compaction_block_is_refused_with_its_code():
    """Lint rules about compactions are refused with the provider's error codes."""
    client = build_thinking_client()
    compact_first_messages(client, 4)
    client.history.insert(0, {"role": "user", "content": "before"})
    reply = client.send_user_text("next", anthropic_beta=ON_DEMAND_BETA)
    assert reply.details == {"error_code": "compaction_block_misplaced"}


def test_count_of_a_compaction_request_is_that_of_the_request():
    """The ``compaction`` field adds nothing to the count."""
    client = build_thinking_client()
    client.history.append({"role": "user", "content": "next"})
    plain = client.send_history("count")
    assert isinstance(plain, TokenCountReply)
    client.body["compaction"] = {"type": "summarize"}
    assert client.send_history("count", anthropic_beta=ON_DEMAND_BETA) == plain


# -- Anthropic, at a threshold -----------------------------------------------------------------------------------------


def build_threshold_fields(**fields):
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}, **fields}
    return {"context_management": {"edits": [edit]}}


def test_threshold_compaction_precedes_the_answer():
    """Above the trigger the answer begins with a block, and earlier messages are neither read nor needed."""
    client = ProviderClient(Provider(WORDS), "anthropic", **build_threshold_fields())
    client.send_user_text("short", anthropic_beta=CONTEXT_MANAGEMENT_BETA)
    before = client.send_user_text(LONG * 90, anthropic_beta=CONTEXT_MANAGEMENT_BETA)
    assert [type(part).__name__ for part in before.parts] == ["Opaque", "Text"]
    assert before.compaction.total_input > 50_000 > before.usage.total_input
    after = client.send_user_text("next", anthropic_beta=CONTEXT_MANAGEMENT_BETA)
    assert (after.compaction, after.usage.total_input < 1_000) == (None, True)
    client.history[:3] = []
    assert client.send_user_text("cut", anthropic_beta=CONTEXT_MANAGEMENT_BETA).usage.total_input < 1_000


def test_threshold_compaction_defaults_to_150_000_tokens():
    """Without a trigger of its own the edit uses Anthropic's default."""
    edits = {"context_management": {"edits": [{"type": "compact_20260112"}]}}
    for repeats, compacts in ((180, False), (200, True)):
        reply = ProviderClient(Provider(WORDS), "anthropic", **edits).send_user_text(
            LONG * repeats, anthropic_beta=CONTEXT_MANAGEMENT_BETA
        )
        assert (reply.compaction is not None) is compacts


def test_threshold_compaction_with_a_pause_stops_after_the_block():
    """With pause_after_compaction the answer follows only when the request is sent again."""
    client = ProviderClient(Provider(WORDS), "anthropic", **build_threshold_fields(pause_after_compaction=True))
    paused = client.send_user_text(LONG * 90, anthropic_beta=CONTEXT_MANAGEMENT_BETA)
    assert (paused.stop, len(paused.parts)) == ("compaction", 1)
    assert client.send_history(anthropic_beta=CONTEXT_MANAGEMENT_BETA).parts[0].text == "ok 1"


# -- Responses ---------------------------------------------------------------------------------------------------------


def test_compact_endpoint_returns_user_messages_and_an_encrypted_item():
    """``/responses/compact`` returns all user messages and one encrypted item, valid as the next input."""
    client = ProviderClient(Provider(WORDS), "openai-responses")
    client.send_user_text("one " * 20)
    input_tokens = client.send_user_text("two").usage.total_input
    reply = client.send_history("compact")
    assert isinstance(reply, CompactReply)
    items = [msgspec.json.decode(item) for item in reply.items]
    assert [item.get("role", item.get("type")) for item in items] == ["user", "user", "compaction"]
    assert (reply.usage.total_input, reply.usage.output > 0) == (input_tokens + 5, True)
    client.body["input"] = items
    after = client.send_user_text("three").usage.total_input
    client.body["input"] = items[2:3]
    assert client.send_user_text("three").usage.total_input + 20 < after
    client.body["input"] = items
    items[-2]["encrypted_content"] = "gAAA"
    items[2]["encrypted_content"] = "gAAA"
    assert client.send_user_text("four").code == "invalid_encrypted_content"


def test_compaction_trigger_item_is_answered_by_a_compaction_item():
    """The item's hidden text counts as input in later requests."""
    client = ProviderClient(Provider(WORDS), "openai-responses")
    client.send_user_text(LONG)
    client.history.append({"type": "compaction_trigger"})
    reply = client.send_history()
    assert (reply.stop, decode_block(reply)["type"]) == ("compaction", "compaction")
    item = decode_block(reply)
    client.body["input"] = [item]
    assert 10 < client.send_user_text("next").usage.total_input < 1_000


def test_compact_threshold_puts_a_compaction_item_before_the_answer():
    """Above compact_threshold the output begins with a compaction item, and the answer follows."""
    options = {"context_management": [{"type": "compaction", "compact_threshold": 1_000}]}
    client = ProviderClient(Provider(WORDS), "openai-responses", **options)
    assert len(client.send_user_text("short").parts) == 1
    reply = client.send_user_text(LONG * 2)
    assert [type(part).__name__ for part in reply.parts] == ["Opaque", "Text"]
    assert reply.usage.total_input > 1_000
    assert isinstance(client.send_user_text("next"), ModelAnswer)
