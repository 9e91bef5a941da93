"""A request is identified by its client, its scope and its purpose."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.requests.parsed_request import parse_request
from holdfast.proxy.conversation.clients import (
    AGENTS,
    MAX_SIDE_MESSAGES,
    ClientIdentity,
    ToolClients,
    classify_purpose,
    has_tools,
    identify_client,
    make_claude_code_scope,
)

TOOLS = [{"name": "Bash", "input_schema": {"type": "object"}}]
FIRST_MESSAGES = {
    "anthropic": ("messages", {"role": "user", "content": "Go."}),
    "openai-chat": ("messages", {"role": "user", "content": "Go."}),
    "openai-responses": ("input", {"role": "user", "content": "Go."}),
    "gemini": ("contents", {"role": "user", "parts": [{"text": "Go."}]}),
}


def parse_messages(api="anthropic", *messages, **fields):
    """Parse a body with these messages."""
    field, default = FIRST_MESSAGES[api]
    return parse_request(json.dumps({"model": "m", field: list(messages) or [default], **fields}).encode(), api)


def make_user(text):
    """Return a user's message of the Messages and Chat APIs."""
    return {"role": "user", "content": text}


def get_scope(headers, parsed=None):
    """Return the scope of a request."""
    return identify_client("anthropic", headers, parsed or parse_messages()).scope


@pytest.mark.parametrize(
    ("family", "headers"),
    [
        ("claude-code", {"user-agent": "claude-cli/2.1.197 (external, sdk-cli)"}),
        ("claude-code", {"x-claude-code-session-id": "s"}),
        ("codex", {"user-agent": "codex_exec/0.169.0 (Debian)"}),
        ("codex", {"user-agent": "own/1", "originator": "codex_vscode"}),
        ("codex", {"user-agent": "own/1", "originator": "own", "x-codex-turn-metadata": '{"thread_id":"t"}'}),
        ("opencode", {"user-agent": "opencode/1.18.33 ai-sdk/provider-utils"}),
        ("pi", {"user-agent": "pi/1.6.0 (linux; node/v24.21.0; x64)", "x-stainless-lang": "js"}),
        ("pi", {"user-agent": "pi"}),
        ("other", {"user-agent": "pip/26.0"}),
        ("other", {"user-agent": "pixel/1"}),
        ("gemini-cli", {"user-agent": "GeminiCLI-tui/0.61.0", "x-goog-api-client": "google-genai-sdk/1.30.0"}),
        ("google-genai", {"user-agent": "google-genai-sdk/3.4.0 gl-python/3.11.7"}),
        ("google-genai", {"user-agent": "own/1", "x-goog-api-client": "google-genai-sdk/3.4.0"}),
        ("anthropic-sdk", {"user-agent": "AsyncAnthropic/Python 2.12.0", "x-stainless-lang": "python"}),
        ("anthropic-sdk", {"user-agent": "Anthropic/JS 0.91.1", "x-stainless-lang": "js"}),
        ("openai-sdk", {"user-agent": "AsyncOpenAI/Python 3.54.0"}),
        ("openai-sdk", {"user-agent": "AzureOpenAI/Python 3.54.0"}),
        ("litellm", {"user-agent": "litellm/1.106.2"}),
        ("langchain", {"user-agent": "langchain-anthropic/1.7.7"}),
        ("other", {"user-agent": "curl/8"}),
        ("other", {}),
    ],
)
def test_identify_client_reads_the_headers(family, headers):
    """A client that names itself in its headers is identified by them."""
    assert identify_client("anthropic", headers, parse_messages()).family == family


@pytest.mark.parametrize(
    ("family", "sdk_headers"),
    [
        ("langchain", {"x-stainless-raw-response": "true"}),
        ("litellm", {"x-stainless-raw-response": "true", "x-stainless-read-timeout": "600.0"}),
        ("openai-sdk", {"x-stainless-read-timeout": "600"}),
    ],
)
def test_identify_client_recognizes_libraries_on_the_openai_sdk(family, sdk_headers):
    """A library on top of OpenAI's SDK is identified by the SDK headers that it changes."""
    assert (
        identify_client(
            "openai-chat", {"user-agent": "OpenAI/Python 3.54.0", **sdk_headers}, parse_messages("openai-chat")
        ).family
        == family
    )


def test_identify_client_recognizes_pi_and_aider_by_system_prompt():
    """aider and pi before 1.0 do not name themselves, so their system prompt identifies them on every API."""
    js, raw = (
        {"user-agent": "OpenAI/JS 6.26.0", "x-stainless-lang": "js"},
        {"user-agent": "OpenAI/Python 2.20.0", "x-stainless-raw-response": "true", "x-stainless-read-timeout": "600.0"},
    )
    pi, aider = "You are an expert coding assistant operating.", "Act as an expert software developer."
    first = parse_messages("openai-responses", {"role": "system", "content": pi}, make_user("Go."))
    assert identify_client("openai-responses", js, first).family == "pi"
    assert identify_client("openai-responses", js, parse_messages("openai-responses", instructions=pi)).family == "pi"
    for system in (pi, [{"type": "text", "text": pi}]):
        assert identify_client("anthropic", js, parse_messages(system=system)).family == "pi"
    assert (
        identify_client("gemini", js, parse_messages("gemini", systemInstruction={"parts": [{"text": pi}]})).family
        == "pi"
    )
    assert identify_client("openai-chat", js, parse_messages("openai-chat", make_user(pi))).family == "openai-sdk"
    with_prompt = parse_messages("openai-chat", {"role": "system", "content": aider}, make_user("Go."))
    assert identify_client("openai-chat", raw, with_prompt).family == "aider"
    assert identify_client("anthropic", {"user-agent": "litellm/1"}, parse_messages(system=aider)).family == "aider"


def test_identify_client_prefers_the_most_specific_scope():
    """Each session name makes a scope; our header comes before the client's, and headers before the body."""
    names = [
        "x-holdfast-session",
        "x-claude-code-session-id",
        "thread-id",
        "session-id",
        "session_id",
        "x-session-id",
        "x-session-affinity",
        "x-openwebui-chat-id",
    ]
    cached = parse_messages(prompt_cache_key="k")
    for place, name in enumerate(names):
        rest = {other: f"s{number}" for number, other in enumerate(names) if number >= place}
        assert get_scope(rest, cached) == get_scope({name: f"s{place}"})
        assert get_scope({name: f"s{place}"}) not in {"", get_scope({name: "other"})}
    assert get_scope({}, cached) not in {"", get_scope({}, parse_messages(prompt_cache_key="other"))}
    assert get_scope({}) == ""


def test_identify_client_gives_subagents_their_own_scope():
    """Claude Code's subagents share the session's name and are distinguished by their own id."""
    main = {"x-claude-code-session-id": "s"}
    scopes = {get_scope(main | more) for more in ({}, {"x-claude-code-agent-id": "a"}, {"x-claude-code-agent-id": "b"})}
    assert len(scopes) == 3


@pytest.mark.parametrize("user_id", ['{"device_id":"d","session_id":"s-1"}', "user_0f_account_1a_session_s-1"])
def test_identify_client_reads_the_session_from_the_user_id(user_id):
    """Claude Code's session is also in the user id, in either form; the rest of the id is ignored."""
    assert get_scope({}, parse_messages(metadata={"user_id": user_id})) == get_scope({"x-session-id": "s-1"})


@pytest.mark.parametrize("user_id", ["u-17", "", '{"device_id":"d"}', '{"session_id":5}', "[1"])
def test_identify_client_ignores_user_ids_without_a_session(user_id):
    """A value that only names a user makes no scope."""
    assert get_scope({}, parse_messages(metadata={"user_id": user_id})) == ""


@given(
    st.dictionaries(st.sampled_from(["user-agent", "x-codex-turn-metadata", "thread-id", "originator"]), st.text()),
    st.dictionaries(
        st.sampled_from(["system", "metadata", "prompt_cache_key", "tools", "max_tokens"]),
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=4,
        ),
    ),
)
def test_identify_client_and_classify_purpose_never_raise(headers, fields):
    """Any headers and fields give one of the three purposes."""
    parsed = parse_messages(**fields)
    assert classify_purpose(identify_client("anthropic", headers, parsed), headers, parsed, has_tools_before=True) in {
        "turn",
        "side",
        "compaction",
    }


# -- purpose -----------------------------------------------------------------------------------------------------------

CLAUDE, CODEX, OPENCODE = (
    ClientIdentity("claude-code", "s"),
    ClientIdentity("codex", "s"),
    ClientIdentity("opencode", "s"),
)


def test_classify_purpose_recognizes_claude_code_compaction():
    """Claude Code's compaction prompt is the last text of the newest message; elsewhere it is ordinary text."""
    asks = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."
    newest = {"role": "user", "content": [{"type": "text", "text": "Turn two"}, {"type": "text", "text": asks}]}
    listing = {"role": "system", "content": "Available agents"}
    answer = {"role": "assistant", "content": "Done."}
    for messages in ((newest,), (newest, listing), (make_user("Go."), answer, newest)):
        assert (
            classify_purpose(CLAUDE, {}, parse_messages("anthropic", *messages, tools=TOOLS), has_tools_before=True)
            == "compaction"
        )
    swapped = {"role": "user", "content": newest["content"][::-1]}
    for messages in ((swapped,), (newest, answer, make_user("Go on."))):
        assert (
            classify_purpose(CLAUDE, {}, parse_messages("anthropic", *messages, tools=TOOLS), has_tools_before=True)
            == "turn"
        )
    assert (
        classify_purpose(OPENCODE, {}, parse_messages("anthropic", newest, tools=TOOLS), has_tools_before=True)
        == "turn"
    )


def test_classify_purpose_recognizes_codex_compaction():
    """Codex labels its requests; where the label is unreadable, its prompt and its trigger decide."""
    words = parse_messages(
        "openai-responses", make_user("Go."), make_user("You are performing a CONTEXT CHECKPOINT COMPACTION.")
    )
    trigger = parse_messages("openai-responses", make_user("Go."), {"type": "compaction_trigger"}, tools=TOOLS)
    plain = parse_messages("openai-responses", tools=TOOLS)
    label = {"x-codex-turn-metadata": '{"thread_id":"t","request_kind":"compaction"}'}
    assert classify_purpose(CODEX, label, plain, has_tools_before=True) == "compaction"
    assert classify_purpose(CODEX, {}, words, has_tools_before=True) == "compaction"
    assert classify_purpose(CODEX, {"x-codex-turn-metadata": "{"}, trigger, has_tools_before=True) == "compaction"
    turn = {"x-codex-turn-metadata": '{"request_kind":"turn"}'}
    assert classify_purpose(CODEX, turn, words, has_tools_before=False) == "turn"


def test_classify_purpose_recognizes_a_trailing_compaction_trigger():
    """The API's compaction trigger counts for any client, and only at the end."""
    trigger = {"type": "compaction_trigger"}
    triggered = parse_messages("openai-responses", make_user("Go."), trigger)
    assert classify_purpose(ClientIdentity("openai-sdk"), {}, triggered, has_tools_before=False) == "compaction"
    early = parse_messages("openai-responses", trigger, make_user("Go."))
    assert classify_purpose(ClientIdentity("openai-sdk"), {}, early, has_tools_before=False) == "turn"


@pytest.mark.parametrize(("family", "who"), [("opencode", "agent"), ("pi", "assistant")])
def test_classify_purpose_recognizes_compaction_of_opencode_and_pi(family, who):
    """opencode and pi send the conversation as one text under a summary prompt and without tools."""
    system = {"role": "system", "content": f"You are a context summarization {who}. You read conversations."}
    messages = system, make_user("<conversation>\n[User]: Go.\n</conversation>")
    assert (
        classify_purpose(ClientIdentity(family), {}, parse_messages("openai-chat", *messages), has_tools_before=False)
        == "compaction"
    )
    assert (
        classify_purpose(
            ClientIdentity(family), {}, parse_messages("openai-chat", *messages, tools=TOOLS), has_tools_before=False
        )
        == "turn"
    )
    assert (
        classify_purpose(ClientIdentity("other"), {}, parse_messages("openai-chat", *messages), has_tools_before=False)
        == "turn"
    )


def test_classify_purpose_recognizes_title_requests():
    """A title request is recognized by its prompt before and after the first turn; a request with tools is a turn."""
    system = {"role": "system", "content": "You are a title generator. You output ONLY a title."}
    messages = system, make_user("Generate a title:"), make_user("Go.")
    for before in (False, True):
        assert (
            classify_purpose(OPENCODE, {}, parse_messages("openai-chat", *messages), has_tools_before=before) == "side"
        )
        assert (
            classify_purpose(
                OPENCODE, {}, parse_messages("openai-chat", *messages, tools=TOOLS), has_tools_before=before
            )
            == "turn"
        )
    blocks = [{"type": "text", "text": "x-anthropic-billing-header: 1"}]
    title = [*blocks, {"type": "text", "text": "Generate a concise, sentence-case title (3-7 words)"}]
    assert classify_purpose(CLAUDE, {}, parse_messages(system=title), has_tools_before=False) == "side"
    assert classify_purpose(CLAUDE, {}, parse_messages(max_tokens=1), has_tools_before=False) == "side", "a probe"


@pytest.mark.parametrize("family", sorted(AGENTS))
def test_classify_purpose_treats_small_requests_without_tools_as_side(family):
    """In a scope that had tools a few messages without tools are a side request; many are a turn."""
    few = [make_user("Go.")] * MAX_SIDE_MESSAGES
    who = ClientIdentity(family, "s")
    assert classify_purpose(who, {}, parse_messages("openai-chat", *few), has_tools_before=True) == "side"
    assert (
        classify_purpose(who, {}, parse_messages("openai-chat", *few, make_user("On.")), has_tools_before=True)
        == "turn"
    )
    assert classify_purpose(who, {}, parse_messages("openai-chat", *few), has_tools_before=False) == "turn"
    assert (
        classify_purpose(ClientIdentity(family), {}, parse_messages("openai-chat", *few), has_tools_before=True)
        == "turn"
    ), "no scope"


@pytest.mark.parametrize("family", ["aider", "openai-sdk", "anthropic-sdk", "google-genai", "litellm", "other"])
@pytest.mark.parametrize("tools", [None, [], TOOLS])
def test_classify_purpose_of_clients_without_tools_is_turn(family, tools):
    """Where a client need not use tools every request is a turn: a misjudged title costs a short session, not a lost
    turn.
    """
    messages = {"role": "system", "content": "You are a title generator."}, make_user("Go.")
    parsed = parse_messages("openai-chat", *messages, tools=tools, max_tokens=1)
    assert classify_purpose(ClientIdentity(family, "s"), {}, parsed, has_tools_before=True) == "turn"


@pytest.mark.parametrize(
    ("tools", "has"), [("[ ]", False), ("null", False), ("[\n\n]", False), ('[{"name":"a"}]', True)]
)
def test_has_tools_ignores_empty_lists(tools, has):
    """An empty list, whatever its spaces, null and a missing field offer no tools."""
    body = '{"messages":[{"role":"user","content":"Go."}],"tools":' + tools + "}"
    assert has_tools(parse_request(body.encode(), "openai-chat")) is has
    assert not has_tools(parse_messages())


def test_tool_clients_remembers_a_bounded_number_of_clients():
    """A client has had tools from its first request with any, and the client that had them first is forgotten first."""
    tooled, (plain, with_tools) = ToolClients(max_clients=2), (parse_messages(), parse_messages(tools=TOOLS))
    first, second, third = (ClientIdentity("pi", scope) for scope in "123")
    assert [tooled.has_had_tools(first, parsed) for parsed in (plain, with_tools, plain, with_tools)] == [
        False,
        False,
        True,
        True,
    ]
    assert [tooled.has_had_tools(who, with_tools) for who in (second, third)] == [False, False]
    assert [tooled.has_had_tools(who, plain) for who in (first, second, third, ClientIdentity("codex", "2"))] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("agent_id", ["", "a57dd96f7981d04f9"])
def test_the_scope_of_claude_code_is_known_from_its_ids(agent_id):
    """Whoever knows the ids of a session and a sub-agent finds their conversation."""
    headers = {"user-agent": "claude-cli/2.1.332", "x-claude-code-session-id": "c1c0adb3"}
    if agent_id:
        headers["x-claude-code-agent-id"] = agent_id
    client = identify_client("anthropic", headers, parse_messages())
    assert (client.family, client.scope) == ("claude-code", make_claude_code_scope("c1c0adb3", agent_id))
