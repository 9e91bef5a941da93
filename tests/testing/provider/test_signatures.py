"""Signatures of the strict provider: accepted unchanged, at their place and by their model, else refused."""

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
SCRIPT = [ScriptedAnswer("", (("ls", {}),), "hm"), ScriptedAnswer("done", (), "ha"), ScriptedAnswer("more")]
DROP_BLOCK_THINKING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BETA = "thinking-binding-controls-2026-08-01"
BOUND_MESSAGE = "The block is bound to a different conversation."
OLD_MODEL = "claude-sonnet-4-5"


def build_thinking_client(model="", settings=WORDS, **fields):
    """Return a client whose history has a call with thinking, its result, and an answer with thinking."""
    client = ProviderClient(Provider(settings, SCRIPT), "anthropic", tools=["ls"], model=model, **fields)
    client.send_results(client.send_user_text("go"))
    return client


def change_one_character(signature):
    return ("A" if signature[9] != "A" else "B").join((signature[:9], signature[10:]))


@given(st.dictionaries(st.text(), st.text()).filter(lambda fields: "kind" not in fields), st.data())
def test_open_provider_signature_returns_the_fields_of_an_unchanged_one(fields, data):
    """Signatures open under their kind only, in both base64 alphabets, and not after any change."""
    signature = make_provider_signature("thinking", **fields)
    assert open_provider_signature(signature, "thinking") == {"kind": "thinking", **fields}
    assert open_provider_signature(signature.replace("+", "-").replace("/", "_").rstrip("="), "thinking") is not None
    assert open_provider_signature(signature, "thought") is None
    at = data.draw(st.integers(0, len(signature.rstrip("=")) - 2))
    assert (
        open_provider_signature(
            signature[:at] + ("A" if signature[at] != "A" else "B") + signature[at + 1 :], "thinking"
        )
        is None
    )


@given(st.one_of(st.text(), st.none(), st.integers()))
def test_open_provider_signature_returns_none_for_other_values(text):
    """Only signatures of the strict provider can be opened."""
    assert open_provider_signature(text, "thinking") is None


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def test_thinking_binding_ignores_changes_without_meaning():
    """Cache breakpoints, white space, a string for a text block and merged messages leave the prefix valid."""
    client = build_thinking_client()
    client.history[0] = {
        "content": [{"text": "go", "type": "text", "cache_control": {"type": "ephemeral"}}],
        "role": "user",
    }
    client.history[1]["content"][1]["cache_control"] = {"type": "ephemeral"}
    client.history.append({"role": "user", "content": "and"})
    assert isinstance(client.send_user_text("on"), ModelAnswer)


def test_thinking_binding_ignores_deferred_tools():
    """A deferred tool can come and go; any other tool changes the prefix."""
    client = build_thinking_client()
    client.body["tools"].append({"name": "later", "input_schema": {"type": "object"}, "defer_loading": True})
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


THINKING_INDEX_BY_EDIT = {edit_result: 3, edit_words: 1, edit_system: 1, edit_tools: 1, drop_first_thinking: 3}


@pytest.mark.parametrize(("edit", "at"), THINKING_INDEX_BY_EDIT.items())
def test_edit_before_thinking_is_refused_on_a_binding_model(edit, at):
    """Nothing before a thinking block may change, including earlier thinking."""
    client = build_thinking_client()
    edit(client.body)
    reply = client.send_user_text("on")
    assert isinstance(reply, RefusalReply)
    assert reply.message.startswith(
        f"messages.{at}.content.0: Invalid `signature` in `thinking` block. {BOUND_MESSAGE}"
    )


def iter_text_paths(value, path=()):
    """Yield the path of every text in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        if isinstance(item, str):
            yield (*path, key)
        yield from iter_text_paths(item, (*path, key))


def test_any_changed_text_before_thinking_is_refused():
    """A change of any text before the newest thinking is refused."""
    count = len(list(iter_text_paths(build_thinking_client().history[:3])))
    assert count > 10
    for number in range(count):
        client = build_thinking_client()
        path = list(iter_text_paths(client.history[:3]))[number]
        owner = client.history
        for step in path[:-1]:
            owner = owner[step]
        owner[path[-1]] += "x"
        assert isinstance(client.send_user_text("on"), RefusalReply), path


@pytest.mark.parametrize("edit", THINKING_INDEX_BY_EDIT)
def test_edit_before_thinking_is_accepted_by_older_models(edit):
    """Models up to Opus 5 accept the same edits."""
    client = build_thinking_client("claude-opus-5")
    edit(client.body)
    assert isinstance(client.send_user_text("on"), ModelAnswer)


@pytest.mark.parametrize(("edit", "at"), THINKING_INDEX_BY_EDIT.items())
def test_drop_block_drops_thinking_that_no_longer_fits(edit, at):
    """With drop_block and its beta these blocks are left out, named, and not counted."""
    client = build_thinking_client()
    edit(client.body)
    client.body["thinking"] = DROP_BLOCK_THINKING
    reply = client.send_user_text("on", anthropic_beta=BETA)
    assert isinstance(reply, ModelAnswer)
    paths = [("messages.1.content.0", "prefix_mismatch"), ("messages.3.content.0", "prefix_mismatch")]
    assert reply.dropped_blocks == tuple(paths if at == 1 else paths[1:])


def test_thinking_after_a_drop_is_bound_to_the_prefix_that_was_read():
    """It passes later whether the client sends the dropped blocks again or omits them."""
    client = build_thinking_client()
    edit_words(client.body)
    client.body["thinking"] = DROP_BLOCK_THINKING
    reply = client.send_user_text("on", anthropic_beta=BETA)
    assert [type(part).__name__ for part in reply.parts] == ["Text"]
    reply = client.send_user_text("think", anthropic_beta=BETA)
    assert [type(part).__name__ for part in reply.parts] == ["Thinking", "Text"]
    assert len(client.send_user_text("again", anthropic_beta=BETA).dropped_blocks) == 2
    del client.body["thinking"], client.history[1]["content"][0], client.history[3]["content"][0]
    assert isinstance(client.send_user_text("without"), ModelAnswer)


def test_omitted_thinking_is_sent_as_a_signature_only():
    """With display omitted the text stays with the provider, and the client cannot add one."""
    client = build_thinking_client(thinking={"type": "adaptive", "display": "omitted"})
    assert client.history[1]["content"][0]["thinking"] == ""
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.history[1]["content"][0]["thinking"] = "hm"
    assert isinstance(client.send_user_text("on"), RefusalReply)


def test_edit_with_all_later_thinking_removed_is_accepted():
    """Without thinking behind the edit nothing is bound to the old prefix."""
    client = build_thinking_client()
    edit_result(client.body)
    del client.history[3]["content"][0]
    assert isinstance(client.send_user_text("on"), ModelAnswer)


@pytest.mark.parametrize("model", ["claude-opus-5-5", OLD_MODEL])
def test_changed_signature_is_refused_on_every_model(model):
    """One changed byte is refused by every model, and drop_block does not help."""
    client = build_thinking_client(model)
    client.body["thinking"] = DROP_BLOCK_THINKING if model != OLD_MODEL else {"type": "enabled", "budget_tokens": 1024}
    client.body["max_tokens"] = 4_000
    block = client.history[1]["content"][0]
    block["signature"] = change_one_character(block["signature"])
    reply = client.send_user_text("on", anthropic_beta=BETA) if model != OLD_MODEL else client.send_history()
    assert isinstance(reply, RefusalReply)
    assert "Invalid `signature` in `thinking` block" in reply.message
    assert BOUND_MESSAGE not in reply.message


def test_changed_thinking_is_refused_in_the_words_for_its_place():
    """The latest assistant message cannot be modified; further back the signature is invalid."""
    for at, message in ((3, "cannot be modified"), (1, "Invalid `signature`")):
        client = build_thinking_client(OLD_MODEL)
        client.history[at]["content"][0]["thinking"] = "other"
        reply = client.send_user_text("on")
        assert isinstance(reply, RefusalReply)
        assert reply.message.startswith(f"messages.{at}.content.0: ")
        assert message in reply.message


def test_thinking_of_another_model_is_refused_by_a_binding_model():
    """A model that binds reads only its own thinking; a date in the name makes no other model."""
    client = build_thinking_client()
    client.body["model"] = "claude-opus-5-5-20261001"
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.body["model"] = "claude-sonnet-5-5"
    reply = client.send_user_text("on")
    assert isinstance(reply, RefusalReply)
    assert BOUND_MESSAGE in reply.message


def test_thinking_of_a_model_without_binding_is_accepted_by_a_binding_one():
    """A session that moves to a binding model keeps its older thinking, edited history or not."""
    client = build_thinking_client("claude-opus-5")
    edit_words(client.body)
    client.body["model"] = "claude-opus-5-5"
    assert isinstance(client.send_user_text("on"), ModelAnswer)


def test_settings_choose_accepted_signatures_and_binding():
    """``accepted_seals="any"`` accepts foreign signatures unread, and ``binds_thinking`` overrules the model."""
    block = {"type": "thinking", "thinking": "hm", "signature": "EqQBCg"}
    for accepted_seals, kind in (("own", RefusalReply), ("any", ModelAnswer)):
        client = ProviderClient(
            Provider(ProviderSettings(tokenizer="words", accepted_seals=accepted_seals)), "anthropic"
        )
        client.history.append({"role": "user", "content": "x"})
        client.history.append({"role": "assistant", "content": [block, {"type": "text", "text": "y"}]})
        assert isinstance(client.send_user_text("z"), kind)
    for binds, kind in (("always", RefusalReply), ("never", ModelAnswer)):
        client = build_thinking_client("claude-opus-5", ProviderSettings(tokenizer="words", binds_thinking=binds))
        edit_words(client.body)
        assert isinstance(client.send_user_text("on"), kind)


# -- Responses ---------------------------------------------------------------------------------------------------------


def build_reasoning_client(**fields):
    client = ProviderClient(Provider(WORDS, SCRIPT), "openai-responses", tools=["ls"], reasoning={}, **fields)
    client.send_results(client.send_user_text("go"))
    return client


def test_stored_item_without_its_reasoning_is_refused():
    """The refusal names the item by its id; without the id the item is accepted."""
    client = build_reasoning_client()
    index = next(index for index, item in enumerate(client.history) if item.get("type") == "reasoning")
    reasoning, item = client.history.pop(index), client.history[index]
    reply = client.send_user_text("on")
    assert isinstance(reply, RefusalReply)
    message = f"Item '{item['id']}' of type 'function_call' was provided without its required 'reasoning' item:"
    assert reply.message == f"{message} '{reasoning['id']}'."
    del item["id"]
    assert isinstance(client.send_history(), ModelAnswer)


def test_reasoning_without_storage_needs_its_encrypted_content():
    """With store false the content is sent and must come back, since an id alone is not found."""
    client = build_reasoning_client(store=False)
    reasoning = [item for item in client.history if item.get("type") == "reasoning"]
    assert all(item["encrypted_content"] for item in reasoning)
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.history[1] = {"type": "item_reference", "id": reasoning[0]["id"]}
    reply = client.send_user_text("on")
    assert (reply.status, reply.message.startswith(f"Item with id '{reasoning[0]['id']}' not found.")) == (404, True)
    client.history[1] = reasoning[0] | {"encrypted_content": None}
    del client.body["store"]
    assert client.send_user_text("on").status == 404


def test_stored_item_can_be_sent_as_a_reference():
    """An item that was never stored is not found."""
    client = build_reasoning_client()
    client.history[1] = {"type": "item_reference", "id": client.history[1]["id"]}
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    client.history[1] = {"type": "item_reference", "id": "rs_nobody"}
    assert client.send_user_text("on").status == 404


def test_changed_encrypted_content_is_refused():
    """Encrypted content with one changed byte cannot be verified."""
    client = build_reasoning_client(store=False)
    client.history[1]["encrypted_content"] = change_one_character(client.history[1]["encrypted_content"])
    assert client.send_user_text("on").code == "invalid_encrypted_content"


def test_reasoning_behind_an_edit_is_dropped_and_named():
    """Responses accepts an edited history, but does not read the reasoning behind the edit."""
    client = build_reasoning_client(store=False)
    client.history[3].pop("status", None)
    del client.history[2]["id"]
    assert client.send_user_text("on").dropped_blocks == ()
    client.history[0]["content"] = "gone"
    reply = client.send_user_text("on")
    assert isinstance(reply, ModelAnswer)
    assert [why for _, why in reply.dropped_blocks] == ["prefix_mismatch"] * 2


def test_previous_response_id_stands_for_the_stored_history():
    """The stored history is counted without being sent again; an answer that was not stored is not found."""
    provider = Provider(WORDS, SCRIPT)
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


def test_conversation_keeps_its_history_on_the_server():
    """Only new items are sent; together with previous_response_id it is refused."""
    client = ProviderClient(Provider(WORDS), "openai-responses", conversation={"id": "conv_1"})
    sizes = []
    for text in ("one", "two"):
        client.body["input"] = []
        sizes.append(client.send_user_text(text).usage.total_input)
    assert sizes[1] > sizes[0]
    client.body["previous_response_id"] = "resp_1"
    assert isinstance(client.send_user_text("x"), RefusalReply)


# -- Gemini ------------------------------------------------------------------------------------------------------------


def build_calling_client(model="gemini-3-pro"):
    """Return a client with an open call, its answer, and the part that was signed."""
    client = ProviderClient(Provider(WORDS, SCRIPT), "gemini", tools=["ls"], model=model)
    reply = client.send_user_text("go")
    return client, reply, client.history[1]["parts"][-1]


def test_gemini_call_needs_its_signature_within_the_current_turn():
    """From Gemini 3 the first call of a step needs it until the next user message; older models do not."""
    client, reply, part = build_calling_client()
    del part["thoughtSignature"]
    refusal = client.send_results(reply)
    assert (refusal.code, "missing a thought_signature" in refusal.message) == ("INVALID_ARGUMENT", True)
    client.send_history()
    client.history.append({"role": "model", "parts": [{"text": "so"}]})
    assert isinstance(client.send_user_text("on"), ModelAnswer)
    older, reply, part = build_calling_client("gemini-2.5-pro")
    del part["thoughtSignature"]
    assert isinstance(older.send_results(reply), ModelAnswer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thoughtSignature": "skip_thought_signature_validator"}, None),
        ({"thoughtSignature": "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="}, None),
        ({"thoughtSignature": "U0lH"}, "Corrupted thought signature."),
        ({"functionCall": {"name": "ls", "args": {"a": 1}}}, "Invalid thought signature."),
    ],
)
def test_gemini_signature_is_bound_to_its_part(change, message):
    """The documented dummy passes; other bytes are corrupt, and other arguments are invalid."""
    client, reply, part = build_calling_client()
    part |= change
    refusal = client.send_results(reply)
    assert (refusal.message if isinstance(refusal, RefusalReply) else None) == message


def test_gemini_signature_is_bound_to_its_model():
    """Another model refuses the signature as invalid."""
    client, reply, _ = build_calling_client()
    client.model = "gemini-3.1-flash"
    assert client.send_results(reply).message.startswith("Invalid thought signature")
