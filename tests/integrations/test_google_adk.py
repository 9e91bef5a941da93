"""The plugin in real ADK runners: its Gemini and Claude classes against the strict provider, and a model of our own for
what the provider does not script.
"""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("google.adk", reason="Google ADK is not installed (pip install 'holdfast[google-adk]')")

from google.adk.agents import LlmAgent, ParallelAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App
from google.adk.models import Gemini
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner, Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from google.genai.errors import ClientError
from msgspec.structs import replace
from pydantic import BaseModel, Field

from holdfast.events import CompactionEnded
from holdfast.integrations.google_adk import HoldfastPlugin
from holdfast.integrations.google_adk.contents import read_contents, write_own_content
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import ScriptedAnswer
from holdfast.testing.provider.calls import RefusalReply

# Google's client says so of its own code as soon as aiohttp is installed, which LiteLLM brings.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

EXAMPLE = Path(__file__).parents[2] / "examples/integrations/google_adk_agent.py"
RULE = "Never restart the server."
QUESTION = f"Find out why it is slow. {RULE}"


def write_log(step, lines=120):
    """Return what the tool prints."""
    return "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


def read_log(step: int) -> str:
    """Read the log of one step."""
    return write_log(step)


def read_table(step: int) -> dict:
    """Read the table of one step."""
    return {"rows": write_log(step).splitlines(), "step": step}


def script_steps(count, *last, calls_a_step=1):
    """Return answers that read ``count`` logs, one or several in each step, and then say ``last``."""
    answers = []
    for first in range(0, count, calls_a_step):
        calls = tuple(("read_log", {"step": step}) for step in range(first, first + calls_a_step))
        answers.append(ScriptedAnswer("I look.", calls=calls, thinking="Let me see."))
    return [*answers, *(last or (ScriptedAnswer("done"),))]


def make_model(served, name="gemini-3-pro"):
    """Return ADK's own model class for the strict provider."""
    return Gemini(model=name, base_url=served.url, client_kwargs={"api_key": "any"})


def make_agent(model, name="root", tools=(read_log,), **options):
    """Return an agent that reads logs."""
    return LlmAgent(name=name, model=model, tools=list(tools), **options)


def make_plugin(window=30_000, **options):
    """Return a plugin with a store of its own."""
    return HoldfastPlugin(window=window, **{"store": MemoryStore(), **options})


async def ask(runner, session_id, prompt=QUESTION, run_config=None):
    """Let the agent work on one prompt in a session, made if there is none, and return the events."""
    place = {"app_name": runner.app_name, "user_id": "user", "session_id": session_id}
    if await runner.session_service.get_session(**place) is None:
        await runner.session_service.create_session(**place)
    message = types.Content(role="user", parts=[types.Part(text=prompt)])
    events = []
    options = {"user_id": "user", "session_id": session_id, "new_message": message, "run_config": run_config}
    async with aclosing(runner.run_async(**options)) as stream:
        async for event in stream:
            events.append(event)
    return events


async def ask_and_close(runner, session_id, prompt):
    """Do the same in a process that ends after it."""
    await ask(runner, session_id, prompt)
    await close_clients(runner.agent)
    await runner.close()


def make_runner(agent, plugins):
    """Return a runner of an app whose sessions are in memory."""
    return InMemoryRunner(app=App(name="app", root_agent=agent, plugins=plugins))


def run_agent(agent, plugins, **options):
    """Return the events of one prompt, and those that the session keeps."""
    runner = make_runner(agent, plugins)

    async def work():
        try:
            events = await ask(runner, "one", **options)
        finally:
            await close_clients(agent)
        session = await runner.session_service.get_session(app_name=runner.app_name, user_id="user", session_id="one")
        return events, session.events

    return asyncio.run(work())


async def close_clients(agent):
    """Close the connections of the agents' models, which ADK leaves open."""
    for each in (agent, *agent.sub_agents):
        model = getattr(each, "model", None)
        if isinstance(model, Gemini):
            await model.api_client.aio.aclose()
        elif getattr(model, "client", None) is not None:
            await model.client.close()


def get_text(event):
    """Return the text of an event, without thoughts."""
    return "".join(part.text or "" for part in event.content.parts if not part.thought)


def list_contents(served):
    """Return the contents of each request that the provider answered."""
    answered = [request for request in served.provider.requests if not isinstance(request.reply, RefusalReply)]
    return [json.loads(request.incoming.body)["contents"] for request in answered]


def count_refusals(served):
    """Return how many requests the provider refused."""
    return sum(isinstance(request.reply, RefusalReply) for request in served.provider.requests)


def count_compactions(events):
    """Return how many of Holdfast's events are compactions."""
    return sum(isinstance(event, CompactionEnded) for event in events)


def count_breaks(requests):
    """Return how many requests do not begin with the one before them."""
    pairs = pairwise(requests)
    return sum(after[: len(before)] != before for before, after in pairs)


class FakeModel(BaseLlm):
    """A model that answers with the parts of a script, keeps what it saw, and raises the errors in the script."""

    script: list = Field(default_factory=list)
    seen: list = Field(default_factory=list)
    configs: list = Field(default_factory=list)

    async def generate_content_async(self, llm_request, stream=False):
        """Answer as the script says."""
        self.seen.append(list(llm_request.contents))
        self.configs.append(llm_request.config.model_copy())
        answer = self.script.pop(0) if self.script else [types.Part(text="done")]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=answer)]), partial=True)
            raise make_overflow()
        yield LlmResponse(content=types.Content(role="model", parts=answer))


def make_overflow():
    """Return the error of Gemini for a request that is too long."""
    message = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    return ClientError(400, {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})


# -- the window --------------------------------------------------------------------------------------------------------


def test_agent_lives_past_its_window(strict_provider):
    """An agent that reads three windows of logs finishes; its session keeps the whole history; no request is refused;
    and each request begins as the one before it did, but for compactions.
    """
    served, found = strict_provider(window=30_000, script=script_steps(40)), []
    events, session_events = run_agent(make_agent(make_model(served)), [make_plugin(listener=found.append)])
    assert get_text(events[-1]) == "done"
    responses = [response for event in session_events for response in event.get_function_responses()]
    assert [response.response for response in responses] == [{"result": write_log(step)} for step in range(40)]
    requests = list_contents(served)
    assert count_refusals(served) == 0
    assert count_compactions(found) >= 2
    assert count_breaks(requests) == count_compactions(found)
    assert all(RULE in json.dumps(request[0]) for request in requests)


def test_agent_is_run_synchronously():
    """``Runner.run`` runs its agent in another thread; the plugin works there too."""
    found = []
    model = FakeModel(model="gemini-3-pro", script=[[make_call("read_log", step=step)] for step in range(40)])
    runner = make_runner(make_agent(model), [make_plugin(listener=found.append)])
    runner.session_service.create_session_sync(app_name=runner.app_name, user_id="user", session_id="one")
    message = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    events = list(runner.run(user_id="user", session_id="one", new_message=message))
    assert get_text(events[-1]) == "done"
    assert count_compactions(found) >= 2


def test_agent_without_the_plugin_dies_of_the_overflow(strict_provider):
    """The same agent alone is refused."""
    served = strict_provider(window=30_000, script=script_steps(40))
    with pytest.raises(ClientError, match="exceeds the maximum number of tokens"):
        run_agent(make_agent(make_model(served)), [])


def test_usage_of_answers_makes_the_estimates_better(strict_provider):
    """A provider that counts far more tokens than we do refuses nothing, since each answer says what it counted."""
    served = strict_provider(window=30_000, factor=2.5, script=script_steps(40))
    events, _ = run_agent(make_agent(make_model(served)), [make_plugin()])
    assert get_text(events[-1]) == "done"
    assert count_refusals(served) == 0


@pytest.mark.parametrize("mode", [StreamingMode.NONE, StreamingMode.SSE])
def test_overflow_is_recovered_inside_of_the_call(strict_provider, mode):
    """A window smaller than anybody knew: the refused call is made again with less, and the agent never sees it."""
    served = strict_provider(window=12_000, script=script_steps(40))
    config = RunConfig(streaming_mode=mode)
    events, _ = run_agent(make_agent(make_model(served)), [make_plugin(window=None)], run_config=config)
    assert get_text(events[-1]) == "done"
    assert not any(event.error_code for event in events)
    assert 1 <= count_refusals(served) <= 3


def test_claude_through_adk_lives_past_its_window(strict_provider):
    """ADK's class for Claude, whose API wants the ids of calls and results, with a window that nobody knew."""
    anthropic = pytest.importorskip("anthropic", reason="the SDK of Anthropic is not installed")
    from google.adk.models.anthropic_llm import AnthropicLlm

    served, found = strict_provider(window=12_000, script=script_steps(30, calls_a_step=2)), []
    client = anthropic.AsyncAnthropic(base_url=served.url, api_key="any", max_retries=0)
    model = AnthropicLlm(model="claude-opus-5", client=client, max_tokens=1_000)
    events, _ = run_agent(make_agent(model), [make_plugin(window=None, listener=found.append)])
    assert get_text(events[-1]) == "done"
    assert 1 <= count_refusals(served) <= 3
    assert count_compactions(found) >= 2


# -- recall ------------------------------------------------------------------------------------------------------------


def test_recall_reads_back_what_is_not_shown(strict_provider):
    """The tool that the plugin registers finds a line of an early step."""
    recall = ScriptedAnswer("", calls=(("recall", {"search": "step 003, line 77"}),))
    served = strict_provider(window=30_000, script=script_steps(35, recall, ScriptedAnswer("done")))
    events, _ = run_agent(make_agent(make_model(served)), [make_plugin()])
    (response,) = [found for event in events for found in event.get_function_responses() if found.name == "recall"]
    assert "step 003" in response.response["result"]
    assert get_text(events[-1]) == "done"


def test_large_results_are_previews_that_recall_reads():
    """A result over its budget is shown as a preview with an id, also a table; the recall of that id gives a page."""
    model = FakeModel(model="gemini-3-pro", script=[[make_call("read_table", step=1)]])
    _, session_events = run_agent(make_agent(model, tools=[read_table]), [make_plugin(window=8_000)])
    shown = model.seen[-1][2].parts[0].function_response.response
    whole = session_events[2].content.parts[0].function_response.response
    assert whole == read_table(1)
    assert len(json.dumps(shown)) < len(json.dumps(whole)) / 2
    assert "recall" in shown["result"]


def make_call(name, **arguments):
    """Return a call as a model of ADK gives it."""
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


@pytest.mark.parametrize(
    "options",
    [
        {"output_schema": type("Answer", (BaseModel,), {"__annotations__": {"text": str}}), "tools": ()},
        {
            "tools": (),
            "generate_content_config": types.GenerateContentConfig(response_mime_type="application/json"),
        },
        {"tools": [lambda: None], "generate_content_config": None, "has_recall": True},
    ],
)
def test_recall_is_not_given_where_gemini_refuses_functions(options):
    """A request for JSON without functions stays one without functions; any other gets the tool."""
    has_recall = options.pop("has_recall", False)
    if has_recall:
        options["tools"] = (read_log,)
    model = FakeModel(model="gemini-3-pro", script=[[types.Part(text='{"text": "done"}')]])
    run_agent(make_agent(model, **options), [make_plugin()])
    names = [
        declaration.name for tool in model.configs[0].tools or () for declaration in tool.function_declarations or ()
    ]
    assert ("recall" in names) == has_recall


def test_an_agents_own_tool_called_recall_stays_the_one_that_is_called():
    """The plugin adds no second tool of that name."""

    def recall(topic: str) -> str:
        """Look into the agent's own memory."""
        return f"own memory of {topic}"

    model = FakeModel(model="gemini-3-pro", script=[[make_call("recall", topic="kelp")]])
    run_agent(make_agent(model, tools=[recall]), [make_plugin()])
    assert model.seen[-1][-1].parts[0].function_response.response == {"result": "own memory of kelp"}


# -- sessions and agents -----------------------------------------------------------------------------------------------


def test_decisions_survive_a_restart_with_a_session_service(strict_provider, tmp_path):
    """A new runner on the same sessions and store shows what was shown before, so the prompt cache holds."""
    requests = []
    for prompt in (QUESTION, "And now?"):
        served = strict_provider(window=30_000, script=script_steps(25))
        service = SqliteSessionService(str(tmp_path / "sessions.db"))
        plugin = make_plugin(store=tmp_path / "holdfast.db")
        app = App(name="app", root_agent=make_agent(make_model(served)), plugins=[plugin])
        runner = Runner(app=app, session_service=service)
        asyncio.run(ask_and_close(runner, "one", prompt))
        assert count_refusals(served) == 0
        requests.append(list_contents(served))
    before, after = requests[0][-1], requests[1][0]
    assert is_extract(after[0]["parts"][0]["text"])
    assert after[: len(before)] == before


def test_sessions_do_not_mix():
    """Two sessions with the same prompt are two conversations."""
    store = MemoryStore()
    model = FakeModel(model="gemini-3-pro", script=[])
    runner = make_runner(make_agent(model), [make_plugin(store=store)])
    for session_id in ("one", "two"):
        asyncio.run(ask(runner, session_id))
    assert len(store.list_sessions()) == 2


def test_agents_that_hand_over_each_have_their_own_view(strict_provider):
    """Two agents that transfer to each other stay inside the window; each has a conversation of its own, in which the
    work of the other is a message of the user.
    """
    store = MemoryStore()
    to_helper = ScriptedAnswer("", calls=(("transfer_to_agent", {"agent_name": "helper"}),))
    to_root = ScriptedAnswer("", calls=(("transfer_to_agent", {"agent_name": "root"}),))
    script = [*script_steps(20, to_helper), *script_steps(20, to_root), *script_steps(20)]
    served = strict_provider(window=30_000, script=script)
    helper = make_agent(make_model(served), "helper", description="helps")
    root = make_agent(make_model(served), sub_agents=[helper])
    events, _ = run_agent(root, [make_plugin(store=store)])
    assert get_text(events[-1]) == "done"
    assert {event.author for event in events} == {"root", "helper"}
    assert count_refusals(served) == 0
    assert len(store.list_sessions()) == 2


@pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated", "ignore:The `plugins` argument")
def test_parallel_agents_and_agents_as_tools_do_not_mix(strict_provider):
    """Agents that run at once, and an agent that is the tool of another, have conversations of their own."""
    store = MemoryStore()
    models = [FakeModel(model="gemini-3-pro", script=[[make_call("read_log", step=step)]]) for step in range(3)]
    script = [[make_call("inner", request="read")]]
    inner = make_agent(models[2], "inner")
    outer = make_agent(FakeModel(model="gemini-3-pro", script=script), "outer", tools=[AgentTool(inner)])
    agents = [make_agent(models[0], "first"), make_agent(models[1], "second"), outer]
    run_agent(ParallelAgent(name="all", sub_agents=agents), [make_plugin(store=store)])
    assert len(store.list_sessions()) == 4


# -- what is in the messages -------------------------------------------------------------------------------------------


def test_parallel_calls_without_ids_keep_their_results(strict_provider):
    """Calls of one function in one answer keep their own results, in their order, in every request: ADK removes the
    ids, and the provider refuses what does not fit.
    """
    served = strict_provider(window=30_000, script=script_steps(40, calls_a_step=4))
    events, _ = run_agent(make_agent(make_model(served)), [make_plugin()])
    assert get_text(events[-1]) == "done"
    assert count_refusals(served) == 0
    for request in list_contents(served):
        steps = []
        for content in request:
            for part in content["parts"]:
                if "functionCall" in part:
                    steps.append(part["functionCall"]["args"]["step"])
                elif "functionResponse" in part:
                    assert f"step {steps.pop(0):03}" in part["functionResponse"]["response"]["result"]


def test_results_without_ids_that_come_apart_belong_to_their_calls():
    """Two calls of one function, each answered in a content of its own, are paired by their order."""
    calls = types.Content(role="model", parts=[make_call("read_log", step=1), make_call("read_log", step=2)])
    results = []
    for step in (1, 2):
        response = types.FunctionResponse(name="read_log", response={"result": str(step)})
        results.append(types.Content(role="user", parts=[types.Part(function_response=response)]))
    asked, *answered = read_contents([calls, *results])
    assert [call.id for call in asked.calls] == [answer.results[0].call_id for answer in answered]
    assert len({call.id for call in asked.calls}) == 2


def test_large_arguments_of_calls_are_not_shown_for_ever():
    """What an agent wrote into files is in an extract at most; the session keeps it."""

    def write_file(text: str) -> str:
        """Write a file."""
        return "written"

    texts = [write_log(step, 600) for step in range(6)]
    model = FakeModel(model="gemini-3-pro", script=[[make_call("write_file", text=text)] for text in texts])
    _, session_events = run_agent(make_agent(model, tools=[write_file]), [make_plugin(window=12_000)])
    assert [event.get_function_calls()[0].args["text"] for event in session_events[1:-1:2]] == texts
    for contents in model.seen:
        assert sum(len(part.model_dump_json()) for content in contents for part in content.parts) < 50_000


def test_parts_that_are_not_shortened_stay_as_they_are():
    """Pictures, code and signatures go to the model as ADK has them, while a result beside them is shortened; the
    session's own parts are not changed.
    """
    code = types.Part(executable_code=types.ExecutableCode(code="1 + 1", language="PYTHON"))
    outcome = types.Part(code_execution_result=types.CodeExecutionResult(outcome="OUTCOME_OK", output="2"))
    signed = types.Part(text="I think.", thought=True, thought_signature=b"signed")
    call = types.Part(
        function_call=types.FunctionCall(name="read_table", args={"step": 1}), thought_signature=b"also signed"
    )
    picture = types.Part(inline_data=types.Blob(data=b"\x89PNG", mime_type="image/png"))
    file = types.Part(file_data=types.FileData(file_uri="gs://bucket/file.pdf", mime_type="application/pdf"))
    model = FakeModel(model="gemini-3-pro", script=[[signed, code, outcome, code, call]])
    runner = make_runner(make_agent(model, tools=[read_table]), [make_plugin(window=8_000)])

    async def work():
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")
        message = types.Content(role="user", parts=[types.Part(text="Look closely."), picture, file])
        async for _ in runner.run_async(user_id="user", session_id=session.id, new_message=message):
            pass
        return await runner.session_service.get_session(app_name=runner.app_name, user_id="user", session_id=session.id)

    session = asyncio.run(work())
    first, answer, result = model.seen[-1]
    assert first.parts == [types.Part(text="Look closely."), picture, file]
    assert answer.parts[:4] == [signed, code, outcome, code]
    assert answer.parts[4].thought_signature == b"also signed"
    assert len(result.parts[0].function_response.response["result"]) < len(write_log(1))
    assert session.events[2].get_function_responses()[0].response == read_table(1)


def test_an_instruction_among_the_contents_is_no_part_of_the_history(strict_provider):
    """With a static instruction ADK puts the other one before the newest message, elsewhere in each request: it is
    shown there, whole, in every request, and the rest is as stable as without it.
    """
    served, found, counts = strict_provider(window=30_000, script=script_steps(40)), [], []
    plugin = make_plugin(listener=found.append)

    def count(callback_context, llm_request):
        counts.append(plugin.get_history(callback_context).report().message_count)

    instructions = {"static_instruction": "You read logs.", "instruction": "Today is Monday."}
    agent = make_agent(make_model(served), before_model_callback=count, **instructions)
    events, _ = run_agent(agent, [plugin])
    assert get_text(events[-1]) == "done"
    requests = list_contents(served)
    assert all(json.dumps(request).count("Today is Monday.") == 1 for request in requests)
    assert "Today is Monday." in json.dumps(requests[0][0])
    assert all("Today is Monday." in json.dumps(request[-1]) for request in requests[1:])
    assert counts[:3] == [1, 3, 5]
    assert count_compactions(found) >= 2
    assert count_breaks([request[:-1] for request in requests[1:]]) == count_compactions(found)


# -- when something goes wrong -----------------------------------------------------------------------------------------


def test_an_answer_that_has_begun_is_not_asked_for_again():
    """Where a part of the answer has gone out, the error is the agent's."""
    calls = [[make_call("read_log", step=step)] for step in range(20)]
    model = FakeModel(model="gemini-3-pro", script=[*calls, "I beg"])
    config = RunConfig(streaming_mode=StreamingMode.SSE)
    with pytest.raises(ClientError):
        run_agent(make_agent(model), [make_plugin(window=None)], run_config=config)
    assert len(model.seen) == 21


def test_an_error_that_is_no_overflow_stays_the_agents():
    """Holdfast does not call again for a wrong key."""
    denied = ClientError(403, {"error": {"code": 403, "message": "API key not valid.", "status": "PERMISSION_DENIED"}})
    model = FakeModel(model="gemini-3-pro", script=[denied])
    with pytest.raises(ClientError, match="API key not valid"):
        run_agent(make_agent(model), [make_plugin()])
    assert len(model.seen) == 1


def test_a_second_call_that_fails_otherwise_is_told_with_the_first_error():
    """ADK raises the first error; the second is noted on it."""
    busy = ClientError(503, {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}})
    calls = [[make_call("read_log", step=step)] for step in range(20)]
    model = FakeModel(model="gemini-3-pro", script=[*calls, make_overflow(), busy])
    with pytest.raises(ClientError, match="exceeds the maximum") as raised:
        run_agent(make_agent(model), [make_plugin(window=None)])
    assert "The model is overloaded." in raised.value.__notes__[0]


def test_a_store_that_cannot_be_opened_does_not_stop_the_agent(tmp_path, caplog):
    """The agent goes on with its whole history, and one line of the log says why."""
    (tmp_path / "store.db").write_text("this is no database, and it is long enough to be looked at" * 100)
    model = FakeModel(model="gemini-3-pro", script=[[make_call("read_log", step=step)] for step in range(3)])
    events, _ = run_agent(make_agent(model), [HoldfastPlugin(store=tmp_path / "store.db")])
    assert get_text(events[-1]) == "done"
    assert len([record for record in caplog.records if record.name == "holdfast.integrations"]) == 1


def test_two_plugins_on_one_runner_are_refused():
    """ADK refuses the second one with its name."""
    with pytest.raises(ValueError, match="'holdfast' already registered"):
        make_runner(make_agent(FakeModel(model="gemini-3-pro")), [make_plugin(), make_plugin()])


class ForgetfulPlugin(BasePlugin):
    """A user's plugin that drops the oldest step from every fifth request on."""

    def __init__(self):
        super().__init__(name="forgetful")
        self.count = 0

    async def before_model_callback(self, *, callback_context, llm_request):
        self.count += 1
        dropped = self.count // 5
        llm_request.contents = [llm_request.contents[0], *llm_request.contents[1 + 2 * dropped :]]


def test_a_history_that_a_users_plugin_edits_between_calls_stays_valid(strict_provider):
    """Messages that disappear between two calls break nothing."""
    served = strict_provider(window=30_000, script=script_steps(60))
    events, _ = run_agent(make_agent(make_model(served)), [ForgetfulPlugin(), make_plugin()])
    assert get_text(events[-1]) == "done"
    assert count_refusals(served) == 0


def test_report_and_store_are_reachable_from_callbacks(strict_provider):
    """A callback of the agent asks the plugin how full the context is."""
    served, reports = strict_provider(window=30_000, script=script_steps(10)), []
    plugin = make_plugin()

    def look(callback_context, llm_request):
        reports.append(plugin.get_history(callback_context).report())

    run_agent(make_agent(make_model(served), before_model_callback=look), [plugin])
    assert [report.message_count for report in reports[:3]] == [1, 3, 5]
    assert reports[-1].window == 30_000
    assert reports[-1].tokens == pytest.approx(served.provider.requests[-1].tokens, rel=0.1)


def test_the_example_runs(capsys):
    """The example finishes, and its model was shown a small part of what its agent said."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said, shown = re.findall(r"([\d,]{5,})", capsys.readouterr().out)[:2]
    assert int(shown.replace(",", "")) < int(said.replace(",", "")) / 3


def test_parts_that_look_alike_keep_their_own_signatures():
    """Where a part before them is left out, two parts with nothing but a signature stay two."""
    parts = [types.Part(text="hm", thought=True), *(types.Part(thought_signature=name) for name in (b"a", b"b"))]
    content = types.Content(role="model", parts=parts)
    (given,) = read_contents([content])
    written = write_own_content(content, given, replace(given, parts=given.parts[1:]))
    assert [part.thought_signature for part in written.parts] == [b"a", b"b"]
