"""``run_agent``: each of the model's calls runs at most once, whatever stops the run in between."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent import loop
from holdfast.agent.agent import load_agent_environment, make_session_workspace
from holdfast.agent.loop import (
    LOST_RESULT_TEXT,
    NOT_RUN_RESULT_TEXT,
    STOPPED_RESULT_TEXT,
    TextDelivered,
    ToolFinished,
    ToolStarted,
    run_agent,
)
from holdfast.agent.workspace import allow_command
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import Hooks
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state import entries
from holdfast.state.conversation_state import ConversationState
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Fault, ModelAnswer, Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream

KEY = "task"


def answer_with_calls(*calls, text=""):
    """Return a scripted answer with calls, each a name and its arguments."""
    return ScriptedAnswer(text, tuple((name, arguments) for name, arguments in calls))


def bash_call(command):
    return ("bash", {"command": command})


class Agent:
    """An agent in a folder, with a store on disk and a scripted model."""

    def __init__(self, folder, script, *, api="anthropic", faults=(), **limits):
        self.folder, self.api = folder, api
        self.provider = Provider(ProviderSettings(**limits), script)
        self.upstream = ProviderUpstream(self.provider, faults)
        self.store = folder.parent / "store.db"
        self.steps = []
        self.hooks = Hooks()

    @asynccontextmanager
    async def session(self):
        async with Engine.open(
            str(self.store),
            upstream=self.upstream,
            api=self.api,
            model=STRICTEST_MODELS[self.api],
            environment=load_agent_environment(self.folder),
            hooks=self.hooks,
        ) as engine:
            yield await engine.session(KEY)

    async def work(self, task, allow=allow_command, **more):
        """Return the outcome of a run with a newly opened engine, as in a new process."""
        async with self.session() as session:
            workspace = make_session_workspace(session, self.folder, allow=allow)
            return await run_agent(session, task, workspace, listener=self.steps.append, **more)

    def run(self, task="Go.", **more):
        return anyio.run(lambda: self.work(task, **more))

    def run_and_stop(self, when, **more):
        """Return the outcome of a run that is cancelled a moment after ``when()`` becomes true."""

        async def main():
            scope = anyio.CancelScope()

            async def cancel_when_due():
                while not await anyio.to_thread.run_sync(when):  # noqa: ASYNC110 -- another thread or process does it
                    await anyio.sleep(0.02)
                await anyio.sleep(0.05)
                scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(cancel_when_due)
                return await self.work("Go.", scope=scope, **more)

        return anyio.run(main)

    def results(self):
        """Return the text of every tool result, in the order of the log."""
        with open_store(str(self.store)) as store:
            messages = [
                entry.body.sized_message.message
                for entry in store.read_path(KEY)
                if isinstance(entry.body, entries.MessageEntry)
            ]
        return [get_result_text(result) for message in messages for result in message.results]


# -- a task ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", STRICTEST_MODELS)
@pytest.mark.parametrize("streams", [False, True])
def test_run_agent_completes_a_small_task(folder, api, streams):
    """Files are read, changed and checked, also with several calls at once, and the strict provider accepts every
    request.
    """
    (folder / "app.py").write_text("def double(x):\n    return x + x + 1\n")
    script = [
        answer_with_calls(("read", {"path": "app.py"}), ("ls", {}), text="I look."),
        answer_with_calls(("edit", {"path": "app.py", "old": " + 1", "new": ""})),
        answer_with_calls(bash_call("python3 -c 'import app; print(app.double(4))'")),
        ScriptedAnswer("It doubles now."),
    ]
    agent = Agent(folder, script, api=api)
    outcome = agent.run("Mend double.", streams_text=streams)
    assert (outcome.stop, outcome.steps, outcome.text) == ("done", 4, "It doubles now.")
    assert (folder / "app.py").read_text() == "def double(x):\n    return x + x\n"
    assert agent.results()[-1] == "8\n[exit code 0]"
    assert len(agent.results()) == 4
    assert [request.reply.__class__.__name__ for request in agent.provider.requests] == ["ModelAnswer"] * 4
    assert "".join(step.text for step in agent.steps if isinstance(step, TextDelivered)) == "I look.It doubles now."
    assert [step.call.name for step in agent.steps if isinstance(step, ToolStarted)] == ["read", "ls", "edit", "bash"]
    assert [step.result.is_error for step in agent.steps if isinstance(step, ToolFinished)] == [False] * 4


def test_run_agent_returns_the_models_mistakes_as_results(folder):
    """An unknown tool, bad arguments, an outside path or a denied command gives an error result; the run goes on."""
    script = [
        answer_with_calls(("fly", {}), ("read", {"file": "a"}), ("read", {"path": "../secret.txt"})),
        answer_with_calls(("write", {"path": "/etc/mine", "text": "x"}), bash_call("touch mine")),
        ScriptedAnswer("I give up."),
    ]

    async def deny(_):
        return False

    agent = Agent(folder, script)
    assert agent.run(allow=deny).stop == "done"
    results = agent.results()
    for text, why in zip(
        results, ("no tool 'fly'", "unknown field", "outside", "outside", "did not allow"), strict=True
    ):
        assert why in text
    assert list(folder.iterdir()) == []
    assert "SECRET" not in "".join(results)


def test_run_agent_learns_a_small_window_and_lets_the_model_read_back(folder):
    """An unknown window of 32k is learned from one refusal, and the model reads back what was reduced."""
    (folder / "log.txt").write_text(
        "\n".join(f"line {n}: {'needle' if n == 777 else 'hay'} {n * 7919}" for n in range(9_000))
    )
    script = [
        answer_with_calls(("read", {"path": "log.txt", "lines": f"{n * 400 + 1}-{n * 400 + 400}"})) for n in range(20)
    ]
    script += [
        answer_with_calls(("read", {"path": "log.txt"})),
        answer_with_calls(("fetch_result", {"search": "needle"})),
        ScriptedAnswer("Found."),
    ]
    agent = Agent(folder, script, window=32_000)
    outcome = agent.run()
    assert (outcome.stop, outcome.reason) == ("done", "")
    assert outcome.steps == len(script)
    answered_requests = [request for request in agent.provider.requests if isinstance(request.reply, ModelAnswer)]
    assert len(answered_requests) == len(script) >= len(agent.provider.requests) - 1
    assert all(request.tokens <= 32_000 for request in answered_requests)
    assert "«needle»" in agent.results()[-1]


def test_run_agent_keeps_skill_and_plan_through_compactions_and_restarts(folder):
    """Each summary is followed by the skill in use and the plan, also when another process compacts next."""
    home = folder / ".agents" / "skills" / "tides"
    home.mkdir(parents=True)
    (home / "SKILL.md").write_text("---\nname: tides\ndescription: d\n---\nLook at the moon.")
    (folder / "log.txt").write_text("\n".join(f"line {n} {n * 7919}" for n in range(20_000)))
    reads = [
        answer_with_calls(("read", {"path": "log.txt", "lines": f"{n * 400 + 1}-{n * 400 + 400}"})) for n in range(30)
    ]
    begin = answer_with_calls(("read", {"path": "skill:tides"}), ("todo", {"items": [{"text": "mend the nets"}]}))
    agent = Agent(folder, [begin, *reads, ScriptedAnswer("Done.")], window=32_000)
    assert agent.run(max_steps=14).stop == "steps"
    assert agent.run("").stop == "done"
    with open_store(str(agent.store)) as store:
        compactions = sum(isinstance(entry.body, entries.CompactionEntry) for entry in store.read_path(KEY))
        summary = store.open_state(KEY).view.compaction.summary.text
    assert compactions >= 3
    assert summary.count("Skill tides, in use:\n\nLook at the moon.") == 1
    assert summary.count("- to-do: mend the nets") == 1


# -- limits and errors -------------------------------------------------------------------------------------------------


def test_run_agent_stops_after_max_steps_and_can_go_on(folder):
    """At its step limit the run stops after the results, and a later run goes on from there."""
    agent = Agent(
        folder, [answer_with_calls(bash_call(f"echo {n} >> ran")) for n in range(5)] + [ScriptedAnswer("Done.")]
    )
    outcome = agent.run(max_steps=3)
    assert (outcome.stop, outcome.steps) == ("steps", 3)
    assert agent.run("").stop == "done"
    assert (folder / "ran").read_text().split() == ["0", "1", "2", "3", "4"]


def test_run_agent_stops_when_calls_repeat_with_the_same_result(folder):
    """A repeated call with the same result first warns the model, then stops the run; changing results do not."""
    agent = Agent(folder, [answer_with_calls(("ls", {}))] * 30)
    outcome = agent.run()
    assert (outcome.stop, outcome.steps) == ("repeating", 8)
    results = agent.results()
    assert "call 3 of the same" in results[2]
    assert "of the same" not in results[1]
    busy = Agent(folder, [*[answer_with_calls(bash_call("date +%N"))] * 12, ScriptedAnswer("Done.")])
    busy.store = folder.parent / "other.db"
    assert busy.run().stop == "done"


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_run_agent_reports_a_provider_error_and_can_go_on(folder, api):
    """A provider's refusal ends the run with a reason instead of an exception, and a later run goes on."""
    agent = Agent(
        folder,
        [answer_with_calls(bash_call("echo 1 >> ran")), ScriptedAnswer("Done.")],
        api=api,
        faults=[Fault("401", "head", 2)],
    )
    outcome = agent.run()
    assert (outcome.stop, outcome.steps) == ("error", 1)
    assert "401" in outcome.reason
    assert agent.run("").stop == "done"
    assert (folder / "ran").read_text() == "1\n"


def test_run_agent_sends_nothing_without_a_task(folder):
    """Without a task and without open calls no request is sent."""
    agent = Agent(folder, [ScriptedAnswer("Done.")])
    assert agent.run("").stop == "done"
    agent.run("Go.")
    assert agent.run("").reason.startswith("there is no open task")
    assert len(agent.provider.requests) == 1


# -- stops and crashes -------------------------------------------------------------------------------------------------


def test_run_agent_stopped_during_a_command_records_a_result_for_each_call(folder):
    """The stopped command gets a result that says its effects are unknown, later calls one that says they did not run,
    even if a hook waits while a result is appended.
    """

    async def wait_briefly(_):
        await anyio.sleep(0.01)

    script = [
        answer_with_calls(("ls", {}), bash_call("echo 1 >> ran; sleep 60"), bash_call("echo 2 >> ran")),
        ScriptedAnswer("I see."),
    ]
    agent = Agent(folder, script)

    agent.hooks = Hooks(on_append=wait_briefly)
    outcome = agent.run_and_stop(lambda: (folder / "ran").exists() and (folder / "ran").read_text())
    assert outcome.stop == "aborted"
    assert agent.results() == ["[. is empty]", STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
    outcome = agent.run("")
    assert (outcome.stop, outcome.text) == ("done", "I see.")
    assert (folder / "ran").read_text() == "1\n"


@pytest.mark.parametrize(("streams", "task"), [(False, ""), (True, ""), (True, "Go on.")])
@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_run_agent_stopped_during_an_answer_runs_none_of_its_calls(folder, api, streams, task):
    """Calls of an incomplete answer are not run, and a later run goes on."""
    script = [
        answer_with_calls(bash_call("echo 1 >> ran"), text="I run it. " * 50),
        answer_with_calls(bash_call("echo 2 >> ran")),
        ScriptedAnswer("Done."),
    ]
    agent = Agent(folder, script, api=api, faults=[Fault("stall", "end", 1, 600.0)])

    assert agent.run_and_stop(lambda: agent.provider.requests, streams_text=streams).stop == "aborted"
    assert agent.results() == []
    assert agent.run(task).stop == "done"
    assert (folder / "ran").read_text() == "2\n"


@given(st.lists(st.sampled_from("ab"), max_size=4), st.integers(0, 4))
def test_find_open_calls_returns_the_calls_after_the_last_result(ids, answered):
    """Ids may repeat within an answer: results belong to its calls in order, and the rest are open."""
    calls = [ToolCall(id_, "ls", str(number)) for number, id_ in enumerate(ids)]
    result_messages = [Message("tool", (ToolResult(id_, "ls", (Text("x"),)),)) for id_ in ids[:answered]]
    messages = [Message.from_text("user", "Go."), Message("assistant", tuple(calls)), *result_messages]
    state = ConversationState.from_entries(
        [
            entries.Entry(str(n), str(n - 1) if n else None, entries.MessageEntry(build_sized_message(message)), n)
            for n, message in enumerate(messages)
        ]
    )
    assert loop.find_open_calls(state) == tuple(calls[answered:])
    assert not loop.is_conversation_answered(state) or not result_messages


def test_run_agent_stopped_during_a_permission_question_runs_no_command(folder):
    """A command that was not yet allowed has not started, nor have the calls after it, and the results say so."""
    commands = []

    async def ask_forever(command):
        commands.append(command)
        await anyio.sleep_forever()

    agent = Agent(
        folder, [answer_with_calls(("ls", {}), bash_call("echo 1 >> ran"), ("ls", {})), ScriptedAnswer("I see.")]
    )
    assert agent.run_and_stop(lambda: commands, allow=ask_forever).stop == "aborted"
    assert agent.results() == ["[. is empty]", NOT_RUN_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
    assert agent.run("").stop == "done"
    assert commands == ["echo 1 >> ran"]


class Crash(BaseException):
    """Stands for the death of the process."""


@pytest.mark.parametrize(
    ("calls", "done", "expected_results"),
    [
        ([("ls", {}), bash_call("echo 2 >> ran")], 0, ["[. is empty]", "(no output)\n[exit code 0]"]),
        ([bash_call("echo 1 >> ran"), bash_call("echo 2 >> ran")], 0, [LOST_RESULT_TEXT, "(no output)\n[exit code 0]"]),
        ([bash_call("echo 1 >> ran"), bash_call("echo 2 >> ran")], 1, ["(no output)\n[exit code 0]", LOST_RESULT_TEXT]),
        ([("write", {"path": "a", "text": "x"})], 0, [LOST_RESULT_TEXT]),
        ([("fly", {})], 0, ["there is no tool 'fly'"]),
    ],
)
def test_run_agent_after_a_crash_never_reruns_a_call_that_may_have_run(
    folder, monkeypatch, calls, done, expected_results
):
    """A call with a result is never run again; one that may have started gets an unknown result if it has effects."""
    agent = Agent(folder, [answer_with_calls(*calls), ScriptedAnswer("Done.")])
    count = 0
    original = loop.run_tool_call

    async def run_until_crash(workspace, call):
        nonlocal count
        count += 1
        if count > done:
            raise Crash
        return await original(workspace, call)

    monkeypatch.setattr(loop, "run_tool_call", run_until_crash)
    with pytest.raises(Crash):
        agent.run()
    monkeypatch.setattr(loop, "run_tool_call", original)
    ran_before = (folder / "ran").read_text() if done else ""
    assert agent.run("").stop == "done"
    results = agent.results()
    assert len(results) == len(expected_results)
    assert all(text.startswith(start) for text, start in zip(results, expected_results, strict=True))
    assert not ran_before or (folder / "ran").read_text() == ran_before
    assert len(agent.provider.requests) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=8)
@given(data=st.data())
def test_run_agent_runs_each_command_at_most_once_after_any_crash(folder, monkeypatch, data):
    """Wherever and however often the process dies, each command runs at most once and each call has a result."""
    groups = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3), label="calls of each answer")
    deaths = data.draw(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=3), label="deaths")
    number = iter(range(100))
    script = [
        answer_with_calls(*[bash_call(f"echo {next(number)} >> ran") for _ in range(size)]) for size in groups
    ] + [ScriptedAnswer("Done.")]
    (folder / "ran").write_text("")
    agent = Agent(folder, script)
    agent.store.unlink(missing_ok=True)
    original = loop.run_tool_call
    for after, begun in deaths:
        calls_left = after

        async def run_until_crash(workspace, call, begun=begun):
            nonlocal calls_left
            calls_left -= 1
            if calls_left < 0:
                if begun:
                    await original(workspace, call)
                raise Crash
            return await original(workspace, call)

        with monkeypatch.context() as patch, suppress(Crash):
            patch.setattr(loop, "run_tool_call", run_until_crash)
            agent.run("" if agent.provider.requests else "Go.")
    assert agent.run("" if agent.provider.requests else "Go.").stop == "done"
    ran = (folder / "ran").read_text().split()
    assert len(ran) == len(set(ran))
    assert len(agent.results()) == sum(groups)
    assert sum(text == LOST_RESULT_TEXT for text in agent.results()) <= len(deaths)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=12)
@given(data=st.data())
def test_run_agent_runs_each_command_at_most_once_across_branches(folder, data):
    """A branch from any entry takes the results that exist on another branch and runs no call twice."""
    groups = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2), label="calls of each answer")
    number = iter(range(100))
    script = [answer_with_calls(*[bash_call(f"echo {next(number)} >> ran") for _ in range(size)]) for size in groups]
    (folder / "ran").write_text("")
    agent = Agent(folder, [*script, *[ScriptedAnswer("Done.")] * 9])
    agent.store.unlink(missing_ok=True)
    assert agent.run().stop == "done"
    for _ in range(2):
        with open_store(str(agent.store)) as store:
            entry_ids = [entry.id for entry in store.read_path(KEY) if not isinstance(entry.body, entries.NoteEntry)]
            store.set_leaf(KEY, data.draw(st.sampled_from(entry_ids[1:]), label="where a branch begins"))
            state = store.open_state(KEY)
            open_calls = len(loop.find_open_calls(state))
            is_over = loop.is_conversation_answered(state)
        started_before = [step for step in agent.steps if isinstance(step, ToolStarted)]
        assert agent.run("Go on." if is_over else "").stop == "done"
        started_after = [step for step in agent.steps if isinstance(step, ToolStarted)]
        assert len(started_after) == len(started_before)
        assert agent.results().count("(no output)\n[exit code 0]") >= open_calls
    ran = (folder / "ran").read_text().split()
    assert len(ran) == len(set(ran)) == sum(groups)


@pytest.mark.parametrize("task", ["", "And this."])
def test_run_agent_refuses_a_second_agent_in_the_same_session(folder, monkeypatch, task):
    """A second agent in a session gets an error and does nothing, not even the open calls; later it may run."""
    monkeypatch.setattr("holdfast.store.locks.LEASE_WAIT", 0.1)
    script = [
        answer_with_calls(bash_call("echo 1 >> ran; sleep 60"), bash_call("echo 2 >> ran")),
        ScriptedAnswer("Done."),
        ScriptedAnswer("And that."),
    ]
    agent, outcomes = Agent(folder, script), []

    def start_other_agent():
        if not outcomes and (folder / "ran").exists():
            outcomes.append(other_agent.run(task))
        return bool(outcomes)

    other_agent = Agent(folder, [ScriptedAnswer("Never.")])
    assert agent.run_and_stop(start_other_agent).stop == "aborted"
    assert (outcomes[0].stop, outcomes[0].steps) == ("error", 0)
    assert "another agent is working in session 'task'; wait" in outcomes[0].reason
    assert not other_agent.provider.requests
    assert agent.results() == [STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
    assert agent.run(task).stop == "done"
    assert (folder / "ran").read_text() == "1\n"


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_run_agent_answers_a_message_that_came_during_the_last_answer(folder, api):
    """A user message that arrives during the last answer is answered before the run is done."""
    agent = Agent(
        folder,
        [answer_with_calls(("ls", {})), ScriptedAnswer("Done."), ScriptedAnswer("I stop."), ScriptedAnswer("Never.")],
        api=api,
    )
    provider = agent.upstream

    class UpstreamWithLateMessage:
        @asynccontextmanager
        async def send(self, request):
            if len(agent.provider.requests) == 1:
                await self.session.append("Stop.")
            async with provider.send(request) as reply:
                yield reply

    agent.upstream = upstream = UpstreamWithLateMessage()

    async def main():
        async with agent.session() as session:
            upstream.session = session
            outcome = await run_agent(session, "Go.", make_session_workspace(session, folder, allow=allow_command))
            return outcome, loop.is_conversation_answered(session.journal.state)

    outcome, is_answered = anyio.run(main)
    assert (outcome.stop, outcome.text, is_answered) == ("done", "I stop.", True)
    assert len(agent.provider.requests) == 3


@pytest.mark.parametrize(
    ("first_api", "second_api"),
    [
        ("openai-chat", "anthropic"),
        ("anthropic", "openai-chat"),
        ("openai-chat", "gemini"),
        ("gemini", "openai-responses"),
        ("openai-responses", "openai-chat"),
    ],
)
def test_run_agent_continues_a_session_over_another_api(folder, first_api, second_api):
    """A session started over one API continues over another, and each request has exactly one system prompt."""
    agent = Agent(folder, [answer_with_calls(("ls", {}), text="I look."), ScriptedAnswer("Empty.")], api=first_api)
    assert agent.run("Look.").stop == "done"
    other_agent = Agent(folder, [answer_with_calls(("ls", {})), ScriptedAnswer("Still empty.")], api=second_api)
    outcome = other_agent.run("Look again.")
    assert (outcome.stop, outcome.text) == ("done", "Still empty."), outcome
    for request in other_agent.provider.requests:
        assert isinstance(request.reply, ModelAnswer)
        assert request.incoming.body.count(b"You work on the user's task in one folder") == 1
