"""The proxy and the session store with the real SDK, and with the program that it runs where that is installed."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import re
import runpy
import shutil
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip(
    "claude_agent_sdk", reason="Claude Agent SDK is not installed (pip install 'holdfast[claude-agent-sdk]')"
)

import claude_agent_sdk
from claude_agent_sdk import (
    AgentDefinition,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    ResultMessage,
    StreamEvent,
    get_session_messages_from_store,
    list_sessions_from_store,
    query,
)
from claude_agent_sdk.testing import run_session_store_conformance

from holdfast.events import CompactionEnded
from holdfast.integrations.claude_agent_sdk import HoldfastProxy, HoldfastSessionStore
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.store.open_store import open_store
from holdfast.testing.provider import RefusalReply, ScriptedAnswer

EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "claude_agent_sdk_agent.py"
RULE = "Never restart the server."
RECALL = "mcp__holdfast__recall"
KEY = {"project_key": "project", "session_id": "session"}
GATEWAY = "http://127.0.0.1:9"


# -- the store ---------------------------------------------------------------------------------------------------------


def make_line(number, **fields):
    """Return a line of a transcript."""
    return {"type": "user", "uuid": f"id-{number}", "message": {"role": "user", "content": f"line {number}"}, **fields}


@pytest.mark.parametrize("place", ["file", ":memory:"])
def test_the_store_keeps_the_contracts_of_the_sdk(tmp_path, place):
    """All 14 contracts of the SDK's own suite hold, those of the optional methods too."""
    paths = iter(range(1_000))

    def make_store():
        return HoldfastSessionStore(place if place == ":memory:" else tmp_path / f"{next(paths)}.db")

    asyncio.run(run_session_store_conformance(make_store))


def test_a_line_that_is_given_twice_is_kept_once(tmp_path):
    """The SDK repeats a batch that it is not sure of; lines without an id are always new."""

    async def append_twice():
        store = HoldfastSessionStore(tmp_path / "s.db")
        title = {"type": "title", "title": "a title"}
        await store.append(KEY, [make_line(1), title])
        await store.append(KEY, [make_line(1), make_line(2), make_line(2), title])
        return await store.load(KEY)

    assert asyncio.run(append_twice()) == [
        make_line(1),
        {"type": "title", "title": "a title"},
        make_line(2),
        {"type": "title", "title": "a title"},
    ]


def test_stores_of_two_processes_see_each_other(tmp_path):
    """Each appends after what the other wrote, drops its repetitions, and begins anew after it has deleted."""

    async def use_both():
        first, second = (HoldfastSessionStore(tmp_path / "s.db") for _ in range(2))
        await first.append(KEY, [make_line(1)])
        await second.append(KEY, [make_line(1), make_line(2)])
        await first.append(KEY, [make_line(2), make_line(3)])
        both = await second.load(KEY)
        await second.delete(KEY)
        await first.append(KEY, [make_line(1)])
        return both, await second.load(KEY)

    both, anew = asyncio.run(use_both())
    assert both == [make_line(1), make_line(2), make_line(3)]
    assert anew == [make_line(1)]


def test_a_transcript_that_another_process_began_anew(tmp_path):
    """One deletes a transcript and begins it again: the other appends to the new one, and keeps no old ids."""

    async def use_both():
        first, second = (HoldfastSessionStore(tmp_path / "s.db") for _ in range(2))
        await first.append(KEY, [make_line(1), make_line(2)])
        await second.delete(KEY)
        await second.append(KEY, [make_line(1)])
        await first.append(KEY, [make_line(2), make_line(3)])
        return await second.load(KEY)

    assert asyncio.run(use_both()) == [make_line(1), make_line(2), make_line(3)]


def test_appends_at_the_same_time_lose_nothing(tmp_path):
    """Many tasks over two stores of one file: every line is there once, each task's own in order."""

    async def append_many():
        stores = [HoldfastSessionStore(tmp_path / "s.db") for _ in range(2)]

        async def append_some(task):
            for number in range(5):
                await stores[task % 2].append(KEY, [make_line(f"{task}-{number}")])

        await asyncio.gather(*(append_some(task) for task in range(6)))
        return await stores[0].load(KEY)

    ids = [line["uuid"] for line in asyncio.run(append_many())]
    assert sorted(ids) == sorted(f"id-{task}-{number}" for task in range(6) for number in range(5))
    for task in range(6):
        own_ids = [id_ for id_ in ids if id_.startswith(f"id-{task}-")]
        assert own_ids == sorted(own_ids)


@pytest.mark.parametrize("odd", ["../..", "a:b", "a%3Ab", "Ünïcode \n", "con", "a" * 300])
def test_names_of_projects_and_sessions_may_be_anything(tmp_path, odd):
    """No name is read as another one or as a path, and none is found by its beginning."""

    async def use_odd_names():
        store = HoldfastSessionStore(tmp_path / "s.db")
        key = {"project_key": odd, "session_id": odd}
        await store.append({**key, "subpath": odd}, [make_line(1)])
        assert await store.load(key) is None
        await store.append({**key, "session_id": f"{odd}x"}, [make_line(2)])
        assert await store.load(key) is None
        await store.append(key, [make_line(3)])
        assert await store.load(key) == [make_line(3)]
        assert await store.list_subkeys(key) == [odd]
        return sorted(entry["session_id"] for entry in await store.list_sessions(odd))

    assert asyncio.run(use_odd_names()) == sorted([odd, f"{odd}x"])


# -- the options -------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Make a home without settings of Claude Code, and none of our or its variables."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in [*os.environ]:
        is_ours = name.startswith(("ANTHROPIC_", "CLAUDE", "HOLDFAST_")) and name != "HOLDFAST_CLAUDE"
        if is_ours or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    return folder


async def note_nothing(hook_input, tool_use_id, context):
    """Have no opinion."""
    return {}


def test_everything_that_the_user_has_set_stays(home):
    """The address, the tool and a hook for it are added, and the given options are not changed."""
    own_hook = HookMatcher(matcher="Bash", hooks=[note_nothing])
    options = ClaudeAgentOptions(
        env={"ANTHROPIC_CUSTOM_HEADERS": "x-team: a", "ANTHROPIC_API_KEY": "k"},
        mcp_servers={"own": {"command": "own"}},
        allowed_tools=["Bash"],
        hooks={"PreToolUse": [own_hook], "PreCompact": [own_hook]},
        agents={
            "reader": AgentDefinition("reads", "Read.", tools=["Read"]),
            "free": AgentDefinition("does all", "Do."),
        },
        resume="1234",
        fork_session=True,
        max_buffer_size=2_000_000,
        system_prompt="Be brief.",
    )
    with HoldfastProxy(store=":memory:") as holdfast:
        configured = holdfast.configure(options)
        url = holdfast.url
    assert configured.env == {
        "ANTHROPIC_CUSTOM_HEADERS": "x-team: a",
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_BASE_URL": url,
        "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL": "1",
    }
    assert list(configured.mcp_servers) == ["own", "holdfast"]
    assert configured.allowed_tools == ["Bash", RECALL]
    assert configured.hooks["PreToolUse"][0] is own_hook
    assert configured.hooks["PreToolUse"][1].matcher == RECALL
    assert configured.hooks["PreCompact"] == [own_hook]
    assert configured.agents["reader"].tools == ["Read", RECALL]
    assert configured.agents["free"].tools is None
    assert (configured.resume, configured.fork_session, configured.system_prompt) == ("1234", True, "Be brief.")
    assert configured.max_buffer_size == 2_000_000
    assert list(options.mcp_servers) == ["own"]
    assert options.hooks["PreToolUse"] == [own_hook]
    assert "ANTHROPIC_BASE_URL" not in options.env


@pytest.mark.parametrize("place", ["option", "environment", "user settings", "settings option", "settings file"])
def test_a_gateway_of_ones_own_stands_behind_the_proxy(home, tmp_path, monkeypatch, place):
    """Wherever its address is set, requests reach it through the proxy; settings are overridden by settings."""
    options = ClaudeAgentOptions()
    document = json.dumps({"env": {"ANTHROPIC_BASE_URL": GATEWAY, "OTHER": "1"}, "model": "opus"})
    if place == "option":
        options = ClaudeAgentOptions(env={"ANTHROPIC_BASE_URL": GATEWAY})
    elif place == "environment":
        monkeypatch.setenv("ANTHROPIC_BASE_URL", GATEWAY)
    elif place == "user settings":
        (home / ".claude").mkdir()
        (home / ".claude" / "settings.json").write_text(document, "utf-8")
    elif place == "settings option":
        options = ClaudeAgentOptions(settings=document)
    else:
        (tmp_path / "own.json").write_text(document, "utf-8")
        options = ClaudeAgentOptions(settings="own.json", cwd=tmp_path)
    with HoldfastProxy(store=":memory:") as holdfast:
        configured = holdfast.configure(options)
        url = f"{holdfast.url}/u/{GATEWAY}"
    assert configured.env == {"ANTHROPIC_BASE_URL": url}
    if "settings" not in place:
        assert configured.settings is None
        return
    settings = json.loads(configured.settings)
    assert settings["env"]["ANTHROPIC_BASE_URL"] == url
    if place != "user settings":
        assert (settings["env"]["OTHER"], settings["model"]) == ("1", "opus")


def test_options_that_were_configured_are_left_alone(home):
    """The address is not put behind itself."""
    with HoldfastProxy(store=":memory:") as holdfast:
        once = holdfast.configure()
        assert holdfast.configure(once).env == once.env


def test_a_proxy_that_runs_already_is_used(home, monkeypatch):
    """Behind two proxies every request would be reduced twice."""
    with HoldfastProxy(store=":memory:") as running, HoldfastProxy(store=":memory:") as holdfast:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", running.url)
        configured = holdfast.configure()
    assert "ANTHROPIC_BASE_URL" not in configured.env
    assert configured.allowed_tools == [RECALL]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (ClaudeAgentOptions(mcp_servers="servers.json"), "give a dict"),
        (ClaudeAgentOptions(mcp_servers={"holdfast": {"command": "own"}}), "give it another name"),
    ],
)
def test_where_recall_has_no_place_the_proxy_still_works(home, caplog, options, why):
    """One warning says what is wrong, and the requests go through the proxy all the same."""
    with HoldfastProxy(store=":memory:") as holdfast:
        for _ in range(2):
            configured = holdfast.configure(options)
            assert configured.env["ANTHROPIC_BASE_URL"] == holdfast.url
    assert configured.mcp_servers == options.mcp_servers
    (record,) = [record for record in caplog.records if record.name == "holdfast.integrations"]
    assert why in record.message


def test_an_old_mcp_package_leaves_out_recall_alone(home, caplog, monkeypatch):
    """The SDK also works with mcp 1, whose servers are made in another way."""

    class OldServer:
        def __init__(self, name):
            self.name = name

    monkeypatch.setattr("mcp.server.lowlevel.Server", OldServer)
    with HoldfastProxy(store=":memory:") as holdfast:
        configured = holdfast.configure()
        assert configured.env["ANTHROPIC_BASE_URL"] == holdfast.url
    assert configured.allowed_tools == []
    assert "mcp 2.0 or newer" in caplog.text


def test_an_old_sdk_is_a_clear_error(monkeypatch):
    """The import says which version is needed and how to get it."""
    monkeypatch.delattr(claude_agent_sdk, "fold_session_summary")
    for name in [*sys.modules]:
        if name.startswith("holdfast.integrations.claude_agent_sdk"):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"0\.2\.189 or newer: pip install -U 'holdfast\[claude-agent-sdk\]'"):
        importlib.import_module("holdfast.integrations.claude_agent_sdk")


@pytest.mark.parametrize("place", ["folder", "cloud"])
def test_requests_that_bypass_the_proxy_are_told(home, tmp_path, caplog, place):
    """Settings of a folder may be somebody else's, so no key is sent where they point; the log says what that means."""
    env = {}
    if place == "folder":
        (tmp_path / ".claude").mkdir()
        document = json.dumps({"env": {"ANTHROPIC_BASE_URL": GATEWAY}})
        (tmp_path / ".claude" / "settings.json").write_text(document, "utf-8")
    else:
        env = {"CLAUDE_CODE_USE_BEDROCK": "1"}
    with HoldfastProxy(store=":memory:") as holdfast:
        configured = holdfast.configure(ClaudeAgentOptions(cwd=tmp_path, env=env))
        assert configured.env["ANTHROPIC_BASE_URL"] == holdfast.url
        assert configured.settings is None
    (record,) = [record for record in caplog.records if record.name == "holdfast.integrations"]
    assert "bypass the proxy" in record.message


def test_settings_that_cannot_be_read_leave_the_agent_as_it_is(home, caplog):
    """The program itself says what is wrong with them."""
    options = ClaudeAgentOptions(settings="missing.json")
    with HoldfastProxy(store=":memory:") as holdfast:
        assert holdfast.configure(options) is options
    assert "the option settings cannot be read" in caplog.text


def test_a_proxy_that_cannot_start_leaves_the_agents_as_they_are(home, tmp_path, caplog, monkeypatch):
    """One warning says why; configured options are those that were given."""
    monkeypatch.setattr("holdfast.proxy.server._open_listener", lambda _: (_ for _ in ()).throw(OSError("no port")))
    options = ClaudeAgentOptions()
    with HoldfastProxy(store=tmp_path / "s.db") as holdfast:
        assert holdfast.url == ""
        assert holdfast.configure(options) is options
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "no port" in record.message


# -- the real program --------------------------------------------------------------------------------------------------


@pytest.fixture
def program():
    """Return the program that the SDK runs: the one in a variable, else the one inside of the SDK.

    The SDK leaves the pipes of a program that has ended to the garbage collector, with or without us.
    """
    bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    path = Path(os.environ.get("HOLDFAST_CLAUDE") or bundled)
    if not path.is_file():
        pytest.skip("there is no Claude Code: this SDK has none inside; set HOLDFAST_CLAUDE to its program")
    yield path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Worker:
    """A model that reads one part after the other with Bash, then does what the test wants, and ends."""

    def __init__(self, parts, *last_answers, lines=1_200):
        self.parts = parts
        self.last_answers = list(last_answers)
        self.lines = lines
        self.done = 0

    def choose_next_answer(self, request, blocks):
        """Return the next answer."""
        self.done += 1
        if self.done <= self.parts:
            command = f"seq -f 'line %05g of part {self.done}' 1 {self.lines}"
            return ScriptedAnswer("", (("Bash", {"command": command, "description": "read"}),))
        if self.last_answers:
            return self.last_answers.pop(0)
        return ScriptedAnswer("I have read all parts.")


@pytest.fixture
def make_options(home, program, tmp_path):
    """Return a function that makes options for the real program in a home of its own, at a provider."""

    def make(provider_url, **fields):
        (tmp_path / "work").mkdir(exist_ok=True)
        env = {
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": provider_url,
            "ANTHROPIC_API_KEY": "sk-test",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        return ClaudeAgentOptions(
            env=env, cli_path=program, cwd=tmp_path / "work", allowed_tools=["Bash", "Agent"], **fields
        )

    return make


async def run_query(prompt, options):
    """Run a query and return all its messages."""
    return [message async for message in query(prompt=prompt, options=options)]


def get_result(messages):
    """Return the result of a query, which is a good one."""
    (result,) = [message for message in messages if isinstance(message, ResultMessage)]
    assert not result.is_error, result.result
    return result


def list_bodies(provider):
    """Return the bodies of the requests that were answered."""
    answered = [request for request in provider.requests if not isinstance(request.reply, RefusalReply)]
    return [json.loads(request.incoming.body) for request in answered if request.incoming.endpoint == "generate"]


def find_results(body, text):
    """Return the tool results of a request that contain ``text``."""
    return [
        block
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result" and text in json.dumps(block)
    ]


@pytest.mark.long
def test_an_agent_works_past_its_window(strict_provider, make_options, tmp_path):
    """Nothing reaches the agent of the one refusal that teaches the window; its rule is always shown."""
    served = strict_provider(window=60_000, script=Worker(30))
    events = []

    async def work():
        async with HoldfastProxy(store=tmp_path / "h.db", listener=events.append) as holdfast:
            options = holdfast.configure(make_options(served.url, include_partial_messages=True))
            messages = await run_query(f"Read all parts. {RULE}", options)
            return messages, holdfast.get_report(get_result(messages).session_id)

    messages, report = asyncio.run(work())
    assert any(isinstance(message, StreamEvent) for message in messages)
    assert get_result(messages).result == "I have read all parts."
    refusals = [request for request in served.provider.requests if isinstance(request.reply, RefusalReply)]
    assert len(refusals) == 1
    assert all(RULE in json.dumps(body["messages"]) for body in list_bodies(served.provider))
    assert any(isinstance(event, CompactionEnded) and event.outcome == "compacted" for event in events)
    assert report.session.startswith("claude-code-")
    assert (report.window, report.window_source, report.compaction_count) == (60_000, "learned", 1)
    assert report.tokens < 60_000


@pytest.mark.long
def test_with_a_window_nothing_is_refused(strict_provider, make_options, tmp_path):
    """A window that the program names is kept from the first request on."""
    served = strict_provider(window=60_000, script=Worker(20))

    async def work():
        async with HoldfastProxy(store=tmp_path / "h.db", window=60_000) as holdfast:
            return await run_query("Read all parts.", holdfast.configure(make_options(served.url)))

    get_result(asyncio.run(work()))
    assert not any(isinstance(request.reply, RefusalReply) for request in served.provider.requests)


@pytest.mark.long
def test_the_model_reads_back_what_it_is_not_shown(strict_provider, make_options, tmp_path):
    """The tool answers from the conversation that calls it, and no other of the same store."""
    recall = ScriptedAnswer("", ((RECALL, {"search": "line 00777 of part 2"}),))
    served = strict_provider(window=60_000, script=Worker(20, recall))

    async def work():
        async with HoldfastProxy(store=tmp_path / "h.db", window=60_000) as holdfast:
            options = holdfast.configure(make_options(served.url))
            return await run_query("Read all parts.", options)

    get_result(asyncio.run(work()))
    last, before = (list_bodies(served.provider)[-1], list_bodies(served.provider)[-2])
    assert "line 00777 of part 2\\n" not in json.dumps(before["messages"])
    assert find_results(last, "line 00777 of part 2")


@pytest.mark.long
def test_agents_at_the_same_time_are_kept_apart(strict_provider, make_options, tmp_path):
    """One block serves both, and each is a conversation of its own with its own report."""
    served = strict_provider(window=60_000, script=[])

    async def work():
        async with HoldfastProxy(store=tmp_path / "h.db") as holdfast:
            options = holdfast.configure(make_options(served.url))
            both = await asyncio.gather(run_query("I am ORANGE.", options), run_query("I am PURPLE.", options))
            return [holdfast.get_report(get_result(messages).session_id) for messages in both]

    reports = asyncio.run(work())
    assert reports[0].session != reports[1].session
    for body in list_bodies(served.provider):
        assert ("ORANGE" in json.dumps(body)) != ("PURPLE" in json.dumps(body))


@pytest.mark.long
def test_a_sub_agent_is_a_conversation_of_its_own(strict_provider, make_options, tmp_path):
    """Its recall reads its own words, not those of the agent that started it, and its report is its own."""
    start = {"description": "look", "prompt": "Look for the PURPLE file.", "subagent_type": "looker"}
    ask = ScriptedAnswer("", ((RECALL, {"search": "PURPLE"}),))
    ask_other = ScriptedAnswer("", ((RECALL, {"search": "ORANGE"}),))

    class Agents:
        """The main agent starts another one, which asks for its own words and for those of the first."""

        def __init__(self):
            self.main = [ScriptedAnswer("", (("Agent", start),)), ScriptedAnswer("Started."), ScriptedAnswer("Done.")]
            self.sub = [ask, ask_other, ScriptedAnswer("Found.")]

        def choose_next_answer(self, request, blocks):
            is_main = any("ORANGE box" in block.rendering.text for block in blocks)
            answers = self.main if is_main else self.sub
            return answers.pop(0) if len(answers) > 1 else answers[0]

    served = strict_provider(window=200_000, script=Agents())
    agents = {"looker": AgentDefinition("looks for files", "You look.", tools=["Bash"])}

    async def work():
        async with HoldfastProxy(store=tmp_path / "h.db") as holdfast:
            options = holdfast.configure(make_options(served.url, agents=agents))
            messages = await run_query("Find the ORANGE box.", options)
            session_id = [message for message in messages if isinstance(message, ResultMessage)][-1].session_id
            headers = [request.incoming.headers for request in served.provider.requests]
            (agent_id,) = {h["x-claude-code-agent-id"] for h in headers if "x-claude-code-agent-id" in h}
            return holdfast.get_report(session_id), holdfast.get_report(session_id, agent_id)

    main_report, sub_report = asyncio.run(work())
    assert main_report.session != sub_report.session
    sub_bodies = [
        json.loads(request.incoming.body)
        for request in served.provider.requests
        if "x-claude-code-agent-id" in request.incoming.headers
    ]
    (own, other) = find_results(sub_bodies[-1], "")
    assert "PURPLE» file" in json.dumps(own, ensure_ascii=False)
    # What it finds of the other is only its own question for it.
    assert "ORANGE» box" not in json.dumps(other, ensure_ascii=False)
    assert "[1 found in this conversation" in json.dumps(other)


@pytest.mark.long
def test_a_session_goes_on_in_another_process_and_on_another_machine(strict_provider, make_options, home, tmp_path):
    """The transcript comes from the session store, and the model is shown what it was shown before.

    The fork writes its whole transcript anew, more than the 1 MB that the SDK reads at once by default.
    """
    served = strict_provider(window=60_000, script=Worker(30))

    async def run_once(prompt, **fields):
        sessions = HoldfastSessionStore(tmp_path / "sessions.db")
        async with HoldfastProxy(store=tmp_path / "h.db", window=60_000) as holdfast:
            options = holdfast.configure(make_options(served.url, session_store=sessions, **fields))
            return get_result(await run_query(prompt, options)).session_id

    session_id = asyncio.run(run_once(f"Read all parts. {RULE}"))
    last_before = list_bodies(served.provider)[-1]
    shutil.rmtree(home / ".claude")  # another machine has no transcripts
    (home / ".claude.json").unlink(missing_ok=True)
    assert asyncio.run(run_once("And now?", resume=session_id)) == session_id
    first_after = list_bodies(served.provider)[-1]
    assert RULE in json.dumps(first_after["messages"])
    assert any(is_extract(text) for text in list_texts(first_after))
    shown_before = [strip_cache_marks(message) for message in last_before["messages"]]
    shown_after = [strip_cache_marks(message) for message in first_after["messages"]]
    differing = [at for at, pair in enumerate(zip(shown_before, shown_after, strict=False)) if pair[0] != pair[1]]
    assert differing == []
    forked_id = asyncio.run(run_once("And then?", resume=session_id, fork_session=True))
    assert forked_id != session_id
    assert RULE in json.dumps(list_bodies(served.provider)[-1]["messages"])

    async def read_back():
        store = HoldfastSessionStore(tmp_path / "sessions.db")
        folder = str(tmp_path / "work")
        infos = await list_sessions_from_store(store, directory=folder)
        return infos, await get_session_messages_from_store(store, session_id, directory=folder)

    infos, messages = asyncio.run(read_back())
    assert {info.session_id for info in infos} == {session_id, forked_id}
    assert [message.type for message in messages][:2] == ["user", "assistant"]
    assert len(messages) > 30  # the whole history, whatever the model was shown
    with open_store(tmp_path / "h.db", readonly=True) as store:
        assert len([info for info in store.list_sessions() if info.key.startswith("claude-code-")]) == 2


def list_texts(body):
    """Return the texts of a request's messages."""
    texts = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts += [block["text"] for block in blocks if block["type"] == "text"]
    return texts


def strip_cache_marks(message):
    """Return a message without cache breakpoints, which move."""
    return re.sub(r',? ?"cache_control": \{[^}]*\}', "", json.dumps(message))


@pytest.mark.long
def test_a_client_with_several_turns(strict_provider, make_options, tmp_path):
    """``ClaudeSDKClient`` keeps one program over its turns; hooks of the user's are called."""
    served = strict_provider(window=60_000, script=Worker(16))
    called = []

    async def note_call(hook_input, tool_use_id, context):
        called.append(hook_input["tool_name"])
        return {}

    async def work():
        hooks = {"PreToolUse": [HookMatcher(hooks=[note_call])]}
        with HoldfastProxy(store=tmp_path / "h.db", window=60_000) as holdfast:
            options = holdfast.configure(make_options(served.url, hooks=hooks))
            async with ClaudeSDKClient(options) as client:
                results = []
                for prompt in ("Read all parts.", "Thank you."):
                    await client.query(prompt)
                    results.append(get_result([message async for message in client.receive_response()]))
                return results

    results = asyncio.run(work())
    assert len({result.session_id for result in results}) == 1
    assert called == ["Bash"] * 16
    assert not any(isinstance(request.reply, RefusalReply) for request in served.provider.requests)


@pytest.mark.long
@pytest.mark.skipif(not EXAMPLE.exists(), reason="these tests also run beside an installed wheel")
def test_the_example_runs(home, program, capsys):
    """The example finishes, and one refusal stays inside."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said, refused, size = capsys.readouterr().out.splitlines()
    assert said == "The agent said after 31 steps: Part 7 is slow."
    assert refused == "Of 32 requests 1 was refused; the agent never saw that."
    assert size.endswith("of a window of 60,000.")
