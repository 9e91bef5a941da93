"""What the strict provider signed comes back as it was, where it was, to the model it is for; or is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.provider.calls import ModelAnswer, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.client import ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.opaque_texts import make_provider_signature, open_provider_signature

WORDS = ProviderSettings(tokenizer="words")
TWICE = [ScriptedAnswer("", (("ls", {}),), "hm"), ScriptedAnswer("done", (), "ha"), ScriptedAnswer("more")]
DROPS = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BETA = "thinking-binding-controls-2026-08-01"
BOUND = "The block is bound to a different conversation."
OLD = "claude-sonnet-4-5"


def thinker(model="", settings=WORDS, **fields):
    """Return a client whose history has a call with thinking, its result, and an answer with thinking."""
    client = ProviderClient(Provider(settings, TWICE), "anthropic", tools=["ls"], model=model, **fields)
    client.send_results(client.send_user_text("go"))
    return client


def swapped(signature):
    return ("A" if signature[9] != "A" else "B").join((signature[:9], signature[10:]))


@given(st.dictionaries(st.text(), st.text()).filter(lambda about: "kind" not in about), st.data())
def test_a_seal_opens_unless_a_bit_was_changed(about, data):
    """A seal gives back what it is about, under its kind only, in both alphabets of base64; else nothing."""
    made = make_provider_signature("thinking", **about)
    assert open_provider_signature(made, "thinking") == {"kind": "thinking", **about}
    assert open_provider_signature(made.replace("+", "-").replace("/", "_").rstrip("="), "thinking") is not None
    assert open_provider_signature(made, "thought") is None
    at = data.draw(st.integers(0, len(made.rstrip("=")) - 2))
    assert open_provider_signature(made[:at] + ("A" if made[at] != "A" else "B") + made[at + 1 :], "thinking") is None


@given(st.one_of(st.text(), st.none(), st.integers()))
def test_no_other_text_is_a_seal(text):
    """Anything else opens as nothing."""
    assert open_provider_signature(text, "thinking") is None


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def test_what_does_not_change_the_meaning_is_no_edit():
    """Cache breakpoints, white space, a string for one text block and merged messages leave the prefix as it was."""
    client = thinker()
    client.history[0] = {
        "content": [{"text": "go", "type": "text", "cache_control": {"type": "ephemeral"}}],
        "role": "user",
    }
    client.history[1]["content"][1]["cache_control"] = {"type": "ephemeral"}
    client.history.append({"role": "user", "content": "and"})
    assert isinstance(client.send_user_text("on"), ModelAnswer)


def test_tools_that_are_loaded_later_are_not_signed_over():
    """A deferred tool may come and go; any other changes the prefix."""
    client = thinker()
    client.body["tools"].append({"name": "later", "input_schema": {}, "defer_loading": True})
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.body["tools"][1].pop("defer_loading")
    assert isinstance(client.send_user_text("on"), RefusalReply)


def edit_result(body):
    body["messages"][2]["content"][0]["content"] = "[cleared]"


def edit_words(body):
    body["messages"][0]["content"] = "gone"


def edit_system(body):
    body["system"] = "be brief"


def edit_tools(body):
    body["tools"][0]["description"] = "lists"


def drop_first_thinking(body):
    del body["messages"][1]["content"][0]


EDITS = {edit_result: 3, edit_words: 1, edit_system: 1, edit_tools: 1, drop_first_thinking: 3}


@pytest.mark.parametrize(("edit", "at"), EDITS.items())
def test_an_edit_before_thinking_is_refused(edit, at):
    """On a model that binds, nothing before a thinking block may change, the chain of thinking included."""
    client = thinker()
    edit(client.body)
    reply = client.send_user_text("on")
    assert isinstance(reply, RefusalReply)
    assert reply.message.startswith(f"messages.{at}.content.0: Invalid `signature` in `thinking` block. {BOUND}")


def leaves(value, path=()):
    """Yield the path of every text in a message, but what a provider does not sign over."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        if isinstance(one, str):
            yield (*path, key)
        yield from leaves(one, (*path, key))


def test_any_changed_text_before_thinking_is_refused():
    """Whatever text is changed before the newest thinking, the request is refused; behind it, none need be."""
    count = len(list(leaves(thinker().history[:3])))
    assert count > 10
    for number in range(count):
        client = thinker()
        path = list(leaves(client.history[:3]))[number]
        owner = client.history
        for step in path[:-1]:
            owner = owner[step]
        owner[path[-1]] += "x"
        assert isinstance(client.send_user_text("on"), RefusalReply), path


@pytest.mark.parametrize("edit", EDITS)
def test_older_models_bind_nothing(edit):
    """Up to Opus 5 the same edits pass."""
    client = thinker("claude-opus-5")
    edit(client.body)
    assert isinstance(client.send_user_text("on"), ModelAnswer)


@pytest.mark.parametrize(("edit", "at"), EDITS.items())
def test_drop_block_drops_instead(edit, at):
    """With drop_block and its beta the blocks that no longer fit are left out, named, and not counted."""
    client = thinker()
    edit(client.body)
    client.body["thinking"] = DROPS
    reply = client.send_user_text("on", anthropic_beta=BETA)
    assert isinstance(reply, ModelAnswer)
    paths = [("messages.1.content.0", "prefix_mismatch"), ("messages.3.content.0", "prefix_mismatch")]
    assert reply.dropped_blocks == tuple(paths if at == 1 else paths[1:])


def test_thinking_made_after_a_drop_is_bound_to_what_was_read():
    """An answer behind dropped blocks passes later, whether the client sends those blocks again or leaves them out."""
    client = thinker()
    edit_words(client.body)
    client.body["thinking"] = DROPS
    reply = client.send_user_text("on", anthropic_beta=BETA)
    assert [type(part).__name__ for part in reply.parts] == ["Text"]
    reply = client.send_user_text("think", anthropic_beta=BETA)
    assert [type(part).__name__ for part in reply.parts] == ["Thinking", "Text"]
    assert len(client.send_user_text("again", anthropic_beta=BETA).dropped_blocks) == 2
    del client.body["thinking"], client.history[1]["content"][0], client.history[3]["content"][0]
    assert isinstance(client.send_user_text("without"), ModelAnswer)


def test_thinking_may_be_omitted():
    """With display omitted the words stay with the provider and the signature alone goes out and back."""
    client = thinker(thinking={"type": "adaptive", "display": "omitted"})
    assert client.history[1]["content"][0]["thinking"] == ""
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.history[1]["content"][0]["thinking"] = "hm"
    assert isinstance(client.send_user_text("on"), RefusalReply)


def test_dropping_all_thinking_behind_the_edit_is_allowed():
    """A history whose thinking behind an edit is gone passes."""
    client = thinker()
    edit_result(client.body)
    del client.history[3]["content"][0]
    assert isinstance(client.send_user_text("on"), ModelAnswer)


@pytest.mark.parametrize("model", ["claude-opus-5-5", OLD])
def test_a_changed_signature_is_corrupt_everywhere(model):
    """A signature with one byte changed is refused on every model, and drop_block does not help."""
    client = thinker(model)
    client.body["thinking"] = DROPS if model != OLD else {"type": "enabled", "budget_tokens": 1024}
    client.body["max_tokens"] = 4_000
    block = client.history[1]["content"][0]
    block["signature"] = swapped(block["signature"])
    reply = client.send_user_text("on", anthropic_beta=BETA) if model != OLD else client.send_history()
    assert isinstance(reply, RefusalReply)
    assert "Invalid `signature` in `thinking` block" in reply.message
    assert BOUND not in reply.message


def test_changed_thinking_is_named_by_where_it_stands():
    """In the latest assistant message thinking cannot be modified; further back its signature is invalid."""
    for at, said in ((3, "cannot be modified"), (1, "Invalid `signature`")):
        client = thinker(OLD)
        client.history[at]["content"][0]["thinking"] = "other"
        reply = client.send_user_text("on")
        assert isinstance(reply, RefusalReply)
        assert reply.message.startswith(f"messages.{at}.content.0: ")
        assert said in reply.message


def test_thinking_of_another_model_is_bound_to_it():
    """A model that binds reads its own thinking only; a date in the name makes no other model."""
    client = thinker()
    client.body["model"] = "claude-opus-5-5-20261001"
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.body["model"] = "claude-sonnet-5-5"
    reply = client.send_user_text("on")
    assert isinstance(reply, RefusalReply)
    assert BOUND in reply.message


def test_thinking_of_models_that_do_not_bind_may_be_replayed():
    """A session that moves from an older model to one that binds keeps its thinking, edited history or not."""
    client = thinker("claude-opus-5")
    edit_words(client.body)
    client.body["model"] = "claude-opus-5-5"
    assert isinstance(client.send_user_text("on"), ModelAnswer)


def test_whose_signatures_are_taken_can_be_set():
    """A signature nobody here made is refused, or taken unread with ``seals="any"``; ``binds`` overrules the model."""
    block = {"type": "thinking", "thinking": "hm", "signature": "EqQBCg"}
    for seals, kind in (("own", RefusalReply), ("any", ModelAnswer)):
        client = ProviderClient(Provider(ProviderSettings(tokenizer="words", accepted_seals=seals)), "anthropic")
        client.history.append({"role": "user", "content": "x"})
        client.history.append({"role": "assistant", "content": [block, {"type": "text", "text": "y"}]})
        assert isinstance(client.send_user_text("z"), kind)
    for binds, kind in (("always", RefusalReply), ("never", ModelAnswer)):
        client = thinker("claude-opus-5", ProviderSettings(tokenizer="words", binds_thinking=binds))
        edit_words(client.body)
        assert isinstance(client.send_user_text("on"), kind)


# -- Responses ---------------------------------------------------------------------------------------------------------


def reasoner(**fields):
    client = ProviderClient(Provider(WORDS, TWICE), "openai-responses", tools=["ls"], reasoning={}, **fields)
    client.send_results(client.send_user_text("go"))
    return client


def test_an_item_needs_the_reasoning_it_came_of():
    """An item whose reasoning was taken out is refused by its id, and taken without the id."""
    client = reasoner()
    at = next(at for at, item in enumerate(client.history) if item.get("type") == "reasoning")
    gone, item = client.history.pop(at), client.history[at]
    reply = client.send_user_text("on")
    assert isinstance(reply, RefusalReply)
    said = f"Item '{item['id']}' of type 'function_call' was provided without its required 'reasoning' item:"
    assert reply.message == f"{said} '{gone['id']}'."
    del item["id"]
    assert isinstance(client.send_history(), ModelAnswer)


def test_without_storage_reasoning_needs_its_content():
    """With store false the content goes out and must come back; an id alone is not found."""
    client = reasoner(store=False)
    reasoning = [item for item in client.history if item.get("type") == "reasoning"]
    assert all(item["encrypted_content"] for item in reasoning)
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.history[1] = {"type": "item_reference", "id": reasoning[0]["id"]}
    reply = client.send_user_text("on")
    assert (reply.status, reply.message.startswith(f"Item with id '{reasoning[0]['id']}' not found.")) == (404, True)
    client.history[1] = reasoning[0] | {"encrypted_content": None}
    del client.body["store"]
    assert client.send_user_text("on").status == 404


def test_stored_items_may_be_named_by_their_ids():
    """With storage an item may be sent as a reference, and one that nobody stored is not found."""
    client = reasoner()
    client.history[1] = {"type": "item_reference", "id": client.history[1]["id"]}
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.history[1] = {"type": "item_reference", "id": "rs_nobody"}
    assert client.send_user_text("on").status == 404


def test_changed_content_is_refused():
    """Encrypted content with one byte changed could not be verified."""
    client = reasoner(store=False)
    client.history[1]["encrypted_content"] = swapped(client.history[1]["encrypted_content"])
    assert client.send_user_text("on").code == "invalid_encrypted_content"


def test_reasoning_of_another_history_is_left_out():
    """Responses refuses no edited history: the reasoning behind the edit is not read, and named."""
    client = reasoner(store=False)
    client.history[3].pop("status", None)
    del client.history[2]["id"]
    assert client.send_user_text("on").dropped_blocks == ()
    client.history[0]["content"] = "gone"
    reply = client.send_user_text("on")
    assert isinstance(reply, ModelAnswer)
    assert [why for _, why in reply.dropped_blocks] == ["prefix_mismatch"] * 2


def test_an_answer_is_gone_on_from_by_its_id():
    """The history of a stored answer needs no resending and is counted; one that is not stored is not found."""
    provider = Provider(WORDS, TWICE)
    client = ProviderClient(provider, "openai-responses", tools=["ls"])
    first = client.send_user_text("go " * 50)
    call = first.parts[1].id
    client.body["input"] = [{"type": "function_call_output", "call_id": call, "output": "x"}]
    assert isinstance(client.send_history(), RefusalReply)
    client.body |= {"previous_response_id": first.id, "store": False}
    second = client.send_history()
    assert isinstance(second, ModelAnswer)
    assert second.usage.total_input > first.usage.total_input
    client.body["previous_response_id"] = second.id
    assert client.send_history().code == "previous_response_not_found"


def test_a_conversation_goes_on_by_itself():
    """With a conversation only what is new is sent; beside previous_response_id it is refused."""
    client = ProviderClient(Provider(WORDS), "openai-responses", conversation={"id": "conv_1"})
    sizes = []
    for text in ("one", "two"):
        client.body["input"] = []
        sizes.append(client.send_user_text(text).usage.total_input)
    assert sizes[1] > sizes[0]
    client.body["previous_response_id"] = "resp_1"
    assert isinstance(client.send_user_text("x"), RefusalReply)


# -- Gemini ------------------------------------------------------------------------------------------------------------


def caller(model="gemini-3-pro"):
    """Return a client with an open call, its answer, and the part that was signed."""
    client = ProviderClient(Provider(WORDS, TWICE), "gemini", tools=["ls"], model=model)
    reply = client.send_user_text("go")
    return client, reply, client.history[1]["parts"][-1]


def test_a_call_needs_its_signature_in_the_current_turn():
    """From Gemini 3 the first call of a step has its signature until the user speaks again; before, it needs none."""
    client, reply, part = caller()
    del part["thoughtSignature"]
    refusal = client.send_results(reply)
    assert (refusal.code, "missing a thought_signature" in refusal.message) == ("INVALID_ARGUMENT", True)
    client.send_history()
    client.history.append({"role": "model", "parts": [{"text": "so"}]})
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    older, reply, part = caller("gemini-2.5-pro")
    del part["thoughtSignature"]
    assert isinstance(older.send_results(reply), ModelAnswer)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"thoughtSignature": "skip_thought_signature_validator"}, None),
        ({"thoughtSignature": "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="}, None),
        ({"thoughtSignature": "U0lH"}, "Corrupted thought signature."),
        ({"functionCall": {"name": "ls", "args": {"a": 1}}}, "Invalid thought signature."),
    ],
)
def test_a_signature_is_its_parts_own(change, said):
    """The documented dummy passes; other bytes are corrupt, and other arguments are another part's."""
    client, reply, part = caller()
    part |= change
    refusal = client.send_results(reply)
    assert (refusal.message if isinstance(refusal, RefusalReply) else None) == said


def test_signatures_do_not_cross_models():
    """A signature of one model is invalid at another."""
    client, reply, _ = caller()
    client.model = "gemini-3.1-flash"
    assert client.send_results(reply).message.startswith("Invalid thought signature")
