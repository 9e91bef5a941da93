"""The loop: a model's calls are done, each of them once, whatever stops the work in between."""

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


def says(*calls, text=""):
    """Return an answer with calls, each a name and its arguments."""
    return ScriptedAnswer(text, tuple((name, arguments) for name, arguments in calls))


def bash(command):
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
        """Return how the work ended, in a process of its own as it were."""
        async with self.session() as session:
            place = make_session_workspace(session, self.folder, allow=allow)
            return await run_agent(session, task, place, listener=self.steps.append, **more)

    def run(self, task="Go.", **more):
        return anyio.run(lambda: self.work(task, **more))

    def stopped(self, when, **more):
        """Return how the work ended that was stopped a moment after ``when`` was so."""

        async def main():
            scope = anyio.CancelScope()

            async def stop():
                while not await anyio.to_thread.run_sync(when):  # noqa: ASYNC110 -- another thread or process does it
                    await anyio.sleep(0.02)
                await anyio.sleep(0.05)
                scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(stop)
                return await self.work("Go.", scope=scope, **more)

        return anyio.run(main)

    def results(self):
        """Return what every tool said, in the order of the log."""
        with open_store(str(self.store)) as store:
            said = [
                entry.body.sized_message.message
                for entry in store.read_path(KEY)
                if isinstance(entry.body, entries.MessageEntry)
            ]
        return [get_result_text(result) for message in said for result in message.results]


# -- a task ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", STRICTEST_MODELS)
@pytest.mark.parametrize("streams", [False, True])
def test_a_small_task(folder, api, streams):
    """Files are read, changed and checked, several calls at once too, and the strict provider takes every request."""
    (folder / "app.py").write_text("def double(x):\n    return x + x + 1\n")
    script = [
        says(("read", {"path": "app.py"}), ("ls", {}), text="I look."),
        says(("edit", {"path": "app.py", "old": " + 1", "new": ""})),
        says(bash("python3 -c 'import app; print(app.double(4))'")),
        ScriptedAnswer("It doubles now."),
    ]
    agent = Agent(folder, script, api=api)
    outcome = agent.run("Mend double.", streams_text=streams)
    assert (outcome.stop, outcome.steps, outcome.text) == ("done", 4, "It doubles now.")
    assert (folder / "app.py").read_text() == "def double(x):\n    return x + x\n"
    assert agent.results()[-1] == "8\n[exit code 0]"
    assert len(agent.results()) == 4
    assert [one.reply.__class__.__name__ for one in agent.provider.requests] == ["ModelAnswer"] * 4
    assert "".join(step.text for step in agent.steps if isinstance(step, TextDelivered)) == "I look.It doubles now."
    assert [step.call.name for step in agent.steps if isinstance(step, ToolStarted)] == ["read", "ls", "edit", "bash"]
    assert [step.result.is_error for step in agent.steps if isinstance(step, ToolFinished)] == [False] * 4


def test_mistakes_of_the_model_are_results(folder):
    """A tool there is not, broken arguments, paths outside, a command not allowed: results, and the work goes on."""
    script = [
        says(("fly", {}), ("read", {"file": "a"}), ("read", {"path": "../secret.txt"})),
        says(("write", {"path": "/etc/mine", "text": "x"}), bash("touch mine")),
        ScriptedAnswer("I give up."),
    ]

    async def no(_):
        return False

    agent = Agent(folder, script)
    assert agent.run(allow=no).stop == "done"
    told = agent.results()
    for text, why in zip(told, ("no tool 'fly'", "unknown field", "outside", "outside", "did not allow"), strict=True):
        assert why in text
    assert list(folder.iterdir()) == []
    assert "SECRET" not in "".join(told)


def test_a_long_task_in_a_small_window(folder):
    """A window of 32k that nobody told of is learned from one refusal; what gave way is read back by the model."""
    (folder / "log.txt").write_text(
        "\n".join(f"line {n}: {'needle' if n == 777 else 'hay'} {n * 7919}" for n in range(9_000))
    )
    script = [says(("read", {"path": "log.txt", "lines": f"{n * 400 + 1}-{n * 400 + 400}"})) for n in range(20)]
    script += [
        says(("read", {"path": "log.txt"})),
        says(("fetch_result", {"search": "needle"})),
        ScriptedAnswer("Found."),
    ]
    agent = Agent(folder, script, window=32_000)
    outcome = agent.run()
    assert (outcome.stop, outcome.reason) == ("done", "")
    assert outcome.steps == len(script)
    answered = [one for one in agent.provider.requests if isinstance(one.reply, ModelAnswer)]
    assert len(answered) == len(script) >= len(agent.provider.requests) - 1
    assert all(one.tokens <= 32_000 for one in answered)
    assert "«needle»" in agent.results()[-1]


def test_what_is_in_use_survives_compactions_and_restarts(folder):
    """Behind every summary the skill in use and the plan stand again, also where another process compacts next."""
    home = folder / ".agents" / "skills" / "tides"
    home.mkdir(parents=True)
    (home / "SKILL.md").write_text("---\nname: tides\ndescription: d\n---\nLook at the moon.")
    (folder / "log.txt").write_text("\n".join(f"line {n} {n * 7919}" for n in range(20_000)))
    reads = [says(("read", {"path": "log.txt", "lines": f"{n * 400 + 1}-{n * 400 + 400}"})) for n in range(30)]
    begin = says(("read", {"path": "skill:tides"}), ("todo", {"items": [{"text": "mend the nets"}]}))
    agent = Agent(folder, [begin, *reads, ScriptedAnswer("Done.")], window=32_000)
    assert agent.run(max_steps=14).stop == "steps"
    assert agent.run("").stop == "done"
    with open_store(str(agent.store)) as store:
        compactions = sum(isinstance(entry.body, entries.CompactionEntry) for entry in store.read_path(KEY))
        summary = store.open_state(KEY).view.compaction.summary.text
    assert compactions >= 3
    assert summary.count("Skill tides, in use:\n\nLook at the moon.") == 1
    assert summary.count("The plan as it stands:\n- [open] mend the nets") == 1


# -- where it stops ----------------------------------------------------------------------------------------------------


def test_the_limit_of_steps(folder):
    """When its steps are over the work stops behind the results, and goes on from there."""
    agent = Agent(folder, [says(bash(f"echo {n} >> ran")) for n in range(5)] + [ScriptedAnswer("Done.")])
    outcome = agent.run(max_steps=3)
    assert (outcome.stop, outcome.steps) == ("steps", 3)
    assert agent.run("").stop == "done"
    assert (folder / "ran").read_text().split() == ["0", "1", "2", "3", "4"]


def test_going_round_in_circles(folder):
    """The same call with the same result is told to the model, then stops the work; results that change do not."""
    agent = Agent(folder, [says(("ls", {}))] * 30)
    outcome = agent.run()
    assert (outcome.stop, outcome.steps) == ("repeating", 8)
    told = agent.results()
    assert "call 3 of the same" in told[2]
    assert "of the same" not in told[1]
    busy = Agent(folder, [*[says(bash("date +%N"))] * 12, ScriptedAnswer("Done.")])
    busy.store = folder.parent / "other.db"
    assert busy.run().stop == "done"


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_an_error_is_told(folder, api):
    """A provider that refuses ends the work with words; nothing is raised, and later it goes on where it was."""
    agent = Agent(
        folder, [says(bash("echo 1 >> ran")), ScriptedAnswer("Done.")], api=api, faults=[Fault("401", "head", 2)]
    )
    outcome = agent.run()
    assert (outcome.stop, outcome.steps) == ("error", 1)
    assert "401" in outcome.reason
    assert agent.run("").stop == "done"
    assert (folder / "ran").read_text() == "1\n"


def test_nothing_to_do(folder):
    """Without a task, and with nothing open, nothing is sent."""
    agent = Agent(folder, [ScriptedAnswer("Done.")])
    assert agent.run("").stop == "done"
    agent.run("Go.")
    assert agent.run("").reason.startswith("there is no open task")
    assert len(agent.provider.requests) == 1


# -- what was stopped --------------------------------------------------------------------------------------------------


def test_a_stop_in_the_middle_of_a_command(folder):
    """It is ended, its result says that its effects are unknown, later calls were not run; then the work goes on.

    Hooks that wait while a result goes into the log do not keep it out of there.
    """

    async def patient(_):
        await anyio.sleep(0.01)

    script = [says(("ls", {}), bash("echo 1 >> ran; sleep 60"), bash("echo 2 >> ran")), ScriptedAnswer("I see.")]
    agent = Agent(folder, script)

    agent.hooks = Hooks(on_append=patient)
    outcome = agent.stopped(lambda: (folder / "ran").exists() and (folder / "ran").read_text())
    assert outcome.stop == "aborted"
    assert agent.results() == ["[. is empty]", STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
    outcome = agent.run("")
    assert (outcome.stop, outcome.text) == ("done", "I see.")
    assert (folder / "ran").read_text() == "1\n"


@pytest.mark.parametrize(("streams", "task"), [(False, ""), (True, ""), (True, "Go on.")])
@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_a_stop_in_the_middle_of_an_answer(folder, api, streams, task):
    """Calls of an answer that was not there to its end are not run; the work goes on when it is asked to."""
    script = [says(bash("echo 1 >> ran"), text="I run it. " * 50), says(bash("echo 2 >> ran")), ScriptedAnswer("Done.")]
    agent = Agent(folder, script, api=api, faults=[Fault("stall", "end", 1, 600.0)])

    assert agent.stopped(lambda: agent.provider.requests, streams_text=streams).stop == "aborted"
    assert agent.results() == []
    assert agent.run(task).stop == "done"
    assert (folder / "ran").read_text() == "2\n"


@given(st.lists(st.sampled_from("ab"), max_size=4), st.integers(0, 4))
def test_open_calls_are_those_behind_the_results(ids, answered):
    """Ids may repeat within an answer: results belong to its calls in their order, and the rest is open."""
    calls = [ToolCall(id_, "ls", str(number)) for number, id_ in enumerate(ids)]
    given_ = [Message("tool", (ToolResult(id_, "ls", (Text("x"),)),)) for id_ in ids[:answered]]
    said = [Message.from_text("user", "Go."), Message("assistant", tuple(calls)), *given_]
    branch = ConversationState.from_entries(
        [
            entries.Entry(str(n), str(n - 1) if n else None, entries.MessageEntry(build_sized_message(one)), n)
            for n, one in enumerate(said)
        ]
    )
    assert loop.find_open_calls(branch) == tuple(calls[answered:])
    assert not loop.is_conversation_answered(branch) or not given_


def test_a_stop_while_a_command_waits_for_a_yes(folder):
    """A command that nobody allowed yet has not begun, and neither have those behind it: the model is told so."""
    asked = []

    async def never(command):
        asked.append(command)
        await anyio.sleep_forever()

    agent = Agent(folder, [says(("ls", {}), bash("echo 1 >> ran"), ("ls", {})), ScriptedAnswer("I see.")])
    assert agent.stopped(lambda: asked, allow=never).stop == "aborted"
    assert agent.results() == ["[. is empty]", NOT_RUN_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
    assert agent.run("").stop == "done"
    assert asked == ["echo 1 >> ran"]


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize(
    ("calls", "done", "told"),
    [
        ([("ls", {}), bash("echo 2 >> ran")], 0, ["[. is empty]", "(no output)\n[exit code 0]"]),
        ([bash("echo 1 >> ran"), bash("echo 2 >> ran")], 0, [LOST_RESULT_TEXT, "(no output)\n[exit code 0]"]),
        ([bash("echo 1 >> ran"), bash("echo 2 >> ran")], 1, ["(no output)\n[exit code 0]", LOST_RESULT_TEXT]),
        ([("write", {"path": "a", "text": "x"})], 0, [LOST_RESULT_TEXT]),
        ([("fly", {})], 0, ["there is no tool 'fly'"]),
    ],
)
def test_a_crash_in_the_middle_of_a_tool(folder, monkeypatch, calls, done, told):
    """What has a result is never run again; the call that may have begun is told unknown where that matters."""
    agent = Agent(folder, [says(*calls), ScriptedAnswer("Done.")])
    count = 0
    real = loop.run_tool_call

    async def dying(place, call):
        nonlocal count
        count += 1
        if count > done:
            raise Crash
        return await real(place, call)

    monkeypatch.setattr(loop, "run_tool_call", dying)
    with pytest.raises(Crash):
        agent.run()
    monkeypatch.setattr(loop, "run_tool_call", real)
    before = (folder / "ran").read_text() if done else ""
    assert agent.run("").stop == "done"
    results = agent.results()
    assert len(results) == len(told)
    assert all(text.startswith(start) for text, start in zip(results, told, strict=True))
    assert not before or (folder / "ran").read_text() == before
    assert len(agent.provider.requests) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=8)
@given(data=st.data())
def test_nothing_is_done_twice(folder, monkeypatch, data):
    """Law: wherever the process dies, and however often, each command runs at most once, and each call has a result."""
    groups = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3), label="calls of each answer")
    deaths = data.draw(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=3), label="deaths")
    number = iter(range(100))
    script = [says(*[bash(f"echo {next(number)} >> ran") for _ in range(size)]) for size in groups] + [
        ScriptedAnswer("Done.")
    ]
    (folder / "ran").write_text("")
    agent = Agent(folder, script)
    agent.store.unlink(missing_ok=True)
    real = loop.run_tool_call
    for after, begun in deaths:
        left = after

        async def dying(place, call, begun=begun):
            nonlocal left
            left -= 1
            if left < 0:
                if begun:
                    await real(place, call)
                raise Crash
            return await real(place, call)

        with monkeypatch.context() as patch, suppress(Crash):
            patch.setattr(loop, "run_tool_call", dying)
            agent.run("" if agent.provider.requests else "Go.")
    assert agent.run("" if agent.provider.requests else "Go.").stop == "done"
    ran = (folder / "ran").read_text().split()
    assert len(ran) == len(set(ran))
    assert len(agent.results()) == sum(groups)
    assert sum(text == LOST_RESULT_TEXT for text in agent.results()) <= len(deaths)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=12)
@given(data=st.data())
def test_nothing_is_done_twice_on_any_branch(folder, data):
    """Law: from whatever entry a branch goes on, what was done behind it on another one has its result, and no more."""
    groups = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2), label="calls of each answer")
    number = iter(range(100))
    script = [says(*[bash(f"echo {next(number)} >> ran") for _ in range(size)]) for size in groups]
    (folder / "ran").write_text("")
    agent = Agent(folder, [*script, *[ScriptedAnswer("Done.")] * 9])
    agent.store.unlink(missing_ok=True)
    assert agent.run().stop == "done"
    for _ in range(2):
        with open_store(str(agent.store)) as store:
            places = [one.id for one in store.read_path(KEY) if not isinstance(one.body, entries.NoteEntry)]
            store.set_leaf(KEY, data.draw(st.sampled_from(places[1:]), label="where a branch begins"))
            branch = store.open_state(KEY)
            left = len(loop.find_open_calls(branch))
            is_over = loop.is_conversation_answered(branch)
        before = [step for step in agent.steps if isinstance(step, ToolStarted)]
        assert agent.run("Go on." if is_over else "").stop == "done"
        told = [step for step in agent.steps if isinstance(step, ToolStarted)]
        assert len(told) == len(before)
        assert agent.results().count("(no output)\n[exit code 0]") >= left
    ran = (folder / "ran").read_text().split()
    assert len(ran) == len(set(ran)) == sum(groups)


@pytest.mark.parametrize("task", ["", "And this."])
def test_one_agent_at_a_time(folder, monkeypatch, task):
    """Who comes second to a session is told so and does nothing, its open calls least of all; later it may."""
    monkeypatch.setattr("holdfast.store.locks.LEASE_WAIT", 0.1)
    script = [
        says(bash("echo 1 >> ran; sleep 60"), bash("echo 2 >> ran")),
        ScriptedAnswer("Done."),
        ScriptedAnswer("And that."),
    ]
    agent, said = Agent(folder, script), []

    def second():
        if not said and (folder / "ran").exists():
            said.append(other.run(task))
        return bool(said)

    other = Agent(folder, [ScriptedAnswer("Never.")])
    assert agent.stopped(second).stop == "aborted"
    assert (said[0].stop, said[0].steps) == ("error", 0)
    assert "another agent is working in session 'task'; wait" in said[0].reason
    assert not other.provider.requests
    assert agent.results() == [STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
    assert agent.run(task).stop == "done"
    assert (folder / "ran").read_text() == "1\n"


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_what_is_said_meanwhile_is_answered(folder, api):
    """A user's words that came while the last answer was on its way are answered before the work is done."""
    agent = Agent(
        folder,
        [says(("ls", {})), ScriptedAnswer("Done."), ScriptedAnswer("I stop."), ScriptedAnswer("Never.")],
        api=api,
    )
    provider = agent.upstream

    class Meanwhile:
        @asynccontextmanager
        async def send(self, sent):
            if len(agent.provider.requests) == 1:
                await self.session.append("Stop.")
            async with provider.send(sent) as reply:
                yield reply

    agent.upstream = upstream = Meanwhile()

    async def main():
        async with agent.session() as session:
            upstream.session = session
            outcome = await run_agent(session, "Go.", make_session_workspace(session, folder, allow=allow_command))
            return outcome, loop.is_conversation_answered(session.journal.state)

    outcome, is_answered = anyio.run(main)
    assert (outcome.stop, outcome.text, is_answered) == ("done", "I stop.", True)
    assert len(agent.provider.requests) == 3


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("openai-chat", "anthropic"),
        ("anthropic", "openai-chat"),
        ("openai-chat", "gemini"),
        ("gemini", "openai-responses"),
        ("openai-responses", "openai-chat"),
    ],
)
def test_a_session_goes_on_with_another_api(folder, first, then):
    """What was begun over one API goes on over another; the strict provider takes it, with one system prompt."""
    agent = Agent(folder, [says(("ls", {}), text="I look."), ScriptedAnswer("Empty.")], api=first)
    assert agent.run("Look.").stop == "done"
    other = Agent(folder, [says(("ls", {})), ScriptedAnswer("Still empty.")], api=then)
    outcome = other.run("Look again.")
    assert (outcome.stop, outcome.text) == ("done", "Still empty."), outcome
    for one in other.provider.requests:
        assert isinstance(one.reply, ModelAnswer)
        assert one.incoming.body.count(b"You work on the user's task in one folder") == 1
