"""Compactions that the provider makes: on demand, at a threshold, at an endpoint; and what is checked of them later."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.testing.provider.calls import CompactReply, ModelAnswer, RefusalReply, ScriptedAnswer, TokenCountReply
from holdfast.testing.provider.client import ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

WORDS = ProviderSettings(tokenizer="words")
DEMAND = "compact-2026-09-04"
EDITS = "compact-2026-01-12"
CALLS = [
    ScriptedAnswer("", (("ls", {}),), "hm"),
    ScriptedAnswer("done", (), "ha"),
    ScriptedAnswer("", (("ls", {}),), "so"),
    ScriptedAnswer("end"),
    ScriptedAnswer("more"),
]
LONG = "lorem ipsum " * 400


def thinker():
    """Return a client with two turns of thinking and calls."""
    client = ProviderClient(Provider(WORDS, CALLS), "anthropic", tools=["ls"], thinking={"type": "adaptive"})
    client.send_results(client.send_user_text("go " * 300))
    client.send_results(client.send_user_text("on " * 50))
    return client


def block_of(reply):
    assert isinstance(reply, ModelAnswer), reply
    return msgspec.json.decode(reply.parts[0].raw)


def summarised(client, count):
    """Return the compaction of the first messages, and put it in their place."""
    whole = client.body
    client.body = whole | {"messages": whole["messages"][:count], "compaction": {"type": "summarize"}}
    reply = client.send_history(anthropic_beta=DEMAND)
    client.body = whole | {
        "messages": [{"role": "assistant", "content": [block_of(reply)]}, *whole["messages"][count:]]
    }
    return reply


# -- Anthropic, on demand ----------------------------------------------------------------------------------------------


def test_a_compaction_on_demand_is_one_signed_block():
    """The answer is nothing but the block, its usage stands apart, and the script goes on as if nothing was said."""
    client = thinker()
    reply = summarised(client, 4)
    block = block_of(reply)
    assert (reply.stop, block["type"], bool(block["signature"])) == ("compaction", "compaction", True)
    assert (reply.usage.total_input, reply.usage.output) == (0, 0)
    assert reply.compaction.total_input > 50
    assert reply.compaction.output > 0
    after = client.send_user_text("next", anthropic_beta=DEMAND)
    assert (after.parts[0].text, after.usage.total_input < reply.compaction.total_input) == ("more", True)


def test_kept_thinking_behind_a_compaction_stays_valid():
    """A compaction stands for what it summarised: thinking of the kept turns passes, while the frame is the same."""
    client = thinker()
    summarised(client, 4)
    assert any(block.get("type") == "thinking" for block in client.history[2]["content"])
    assert isinstance(client.send_user_text("next", anthropic_beta=DEMAND), ModelAnswer)
    client.body["system"] = "other"
    reply = client.send_user_text("next", anthropic_beta=DEMAND)
    assert isinstance(reply, RefusalReply)
    assert "bound to a different conversation" in reply.message


def test_a_compaction_of_a_compaction_goes_on():
    """The next compaction summarises the one before, and later thinking still passes."""
    client = thinker()
    summarised(client, 4)
    summarised(client, 2)
    assert isinstance(client.send_user_text("next", anthropic_beta=DEMAND), ModelAnswer)


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("content", "I was never said", "compaction_content_mismatch"),
        ("signature", "c2ln", "compaction_signature_invalid"),
    ],
)
def test_a_changed_block_is_refused(key, value, code):
    """A compaction whose words or signature were changed is refused with the error code of that."""
    client = thinker()
    summarised(client, 4)
    client.history[0]["content"][0][key] = value
    reply = client.send_user_text("next", anthropic_beta=DEMAND)
    assert (reply.status, reply.details.get("error_code")) == (400, code)


def test_a_block_in_the_wrong_place_has_its_code():
    """Rules of lint about compactions are refused with the provider's error codes."""
    client = thinker()
    summarised(client, 4)
    client.history.insert(0, {"role": "user", "content": "before"})
    reply = client.send_user_text("next", anthropic_beta=DEMAND)
    assert reply.details == {"error_code": "compaction_block_misplaced"}


def test_a_count_knows_no_compaction():
    """The count of a request to compact is the count of the request."""
    client = thinker()
    client.history.append({"role": "user", "content": "next"})
    plain = client.send_history("count")
    assert isinstance(plain, TokenCountReply)
    client.body["compaction"] = {"type": "summarize"}
    assert client.send_history("count", anthropic_beta=DEMAND) == plain


# -- Anthropic, at a threshold -----------------------------------------------------------------------------------------


def at_threshold(**fields):
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}, **fields}
    return {"context_management": {"edits": [edit]}}


def test_above_the_threshold_the_block_comes_first():
    """Over the trigger the answer opens with a compaction; what lies before it is no longer read, or needed."""
    client = ProviderClient(Provider(WORDS), "anthropic", **at_threshold())
    client.send_user_text("short", anthropic_beta=EDITS)
    before = client.send_user_text(LONG * 90, anthropic_beta=EDITS)
    assert [type(part).__name__ for part in before.parts] == ["Opaque", "Text"]
    assert before.compaction.total_input > 50_000 > before.usage.total_input
    after = client.send_user_text("next", anthropic_beta=EDITS)
    assert (after.compaction, after.usage.total_input < 1_000) == (None, True)
    client.history[:3] = []
    assert client.send_user_text("cut", anthropic_beta=EDITS).usage.total_input < 1_000


def test_the_trigger_is_150_000_tokens_unless_it_is_said():
    """Without a trigger of its own the edit compacts above Anthropic's default."""
    edits = {"context_management": {"edits": [{"type": "compact_20260112"}]}}
    for times, compacts in ((180, False), (200, True)):
        reply = ProviderClient(Provider(WORDS), "anthropic", **edits).send_user_text(LONG * times, anthropic_beta=EDITS)
        assert (reply.compaction is not None) is compacts


def test_a_pause_stops_after_the_block():
    """With pause_after_compaction nothing else is said until the request comes again."""
    client = ProviderClient(Provider(WORDS), "anthropic", **at_threshold(pause_after_compaction=True))
    paused = client.send_user_text(LONG * 90, anthropic_beta=EDITS)
    assert (paused.stop, len(paused.parts)) == ("compaction", 1)
    assert client.send_history(anthropic_beta=EDITS).parts[0].text == "ok 1"


# -- Responses ---------------------------------------------------------------------------------------------------------


def test_the_endpoint_returns_the_users_words_and_an_item():
    """``/responses/compact`` returns all user messages and one sealed item, good as the next input."""
    client = ProviderClient(Provider(WORDS), "openai-responses")
    client.send_user_text("one " * 20)
    whole = client.send_user_text("two").usage.total_input
    reply = client.send_history("compact")
    assert isinstance(reply, CompactReply)
    items = [msgspec.json.decode(item) for item in reply.items]
    assert [item.get("role", item.get("type")) for item in items] == ["user", "user", "compaction"]
    assert (reply.usage.total_input, reply.usage.output > 0) == (whole + 5, True)
    client.body["input"] = items
    after = client.send_user_text("three").usage.total_input
    client.body["input"] = items[2:3]
    assert client.send_user_text("three").usage.total_input + 20 < after
    client.body["input"] = items
    items[-2]["encrypted_content"] = "gAAA"
    items[2]["encrypted_content"] = "gAAA"
    assert client.send_user_text("four").code == "invalid_encrypted_content"


def test_a_trigger_at_the_end_compacts():
    """A compaction_trigger as the last item is answered by a compaction item, whose hidden words are counted later."""
    client = ProviderClient(Provider(WORDS), "openai-responses")
    client.send_user_text(LONG)
    client.history.append({"type": "compaction_trigger"})
    reply = client.send_history()
    assert (reply.stop, block_of(reply)["type"]) == ("compaction", "compaction")
    item = block_of(reply)
    client.body["input"] = [item]
    assert 10 < client.send_user_text("next").usage.total_input < 1_000


def test_a_threshold_compacts_in_the_middle():
    """Over compact_threshold the output opens with a compaction item and the answer follows."""
    options = {"context_management": [{"type": "compaction", "compact_threshold": 1_000}]}
    client = ProviderClient(Provider(WORDS), "openai-responses", **options)
    assert len(client.send_user_text("short").parts) == 1
    reply = client.send_user_text(LONG * 2)
    assert [type(part).__name__ for part in reply.parts] == ["Opaque", "Text"]
    assert reply.usage.total_input > 1_000
    assert isinstance(client.send_user_text("next"), ModelAnswer)
