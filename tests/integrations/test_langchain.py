"""The middleware in real LangChain agents, with a model that refuses what a provider refuses."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="LangChain is not installed (pip install 'holdfast[langchain]')")

import msgspec
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain.chat_models import init_chat_model
from langchain.tools import tool
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import Field

from holdfast.errors import ConfigError
from holdfast.events import CompactionEnded
from holdfast.integrations.langchain import HoldfastDeepMiddleware, HoldfastMiddleware
from holdfast.integrations.langchain.messages import read_message
from holdfast.integrations.langchain.middleware import _choose_target
from holdfast.messages.parts import ToolCall
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import ScriptedAnswer

EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "langchain_agent.py"
RULE = "Never restart the server."


def write_log(step, lines=120):
    """Return what the tool prints."""
    return "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


@tool
def read_log(step: int) -> str:
    """Read the log of one step."""
    return write_log(step)


class StrictModel(BaseChatModel):
    """A model that reads one log after the other, and refuses what its provider would refuse."""

    steps: int = 40
    window: int = 30_000
    max_tokens: int | None = None
    recalls: dict[int, dict[str, Any]] = Field(default_factory=dict)
    """Arguments of the recall that is called in place of a step."""
    delegates: dict[int, str] = Field(default_factory=dict)
    """What a sub-agent is given to do in place of a step."""
    subagent_name: str = "general-purpose"
    seen: list[list[Any]] = Field(default_factory=list)
    answers: list[Any] = Field(default_factory=list)
    refusals: int = 0

    @property
    def _llm_type(self) -> str:
        return "strict"

    def bind_tools(self, tools, **_):
        """Take any tools."""
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_):
        tokens = sum(
            estimate_text_tokens(str(message.content) + str(getattr(message, "tool_calls", ""))) for message in messages
        )
        if tokens > self.window:
            self.refusals += 1
            raise ContextOverflowError(f"prompt is too long: {tokens} tokens > {self.window} maximum")
        check_pairs(messages)
        self.seen.append(list(messages))
        done = sum(isinstance(message, AIMessage) for message in self.answers)
        usage = {"input_tokens": tokens, "output_tokens": 10, "total_tokens": tokens + 10}
        if done >= self.steps:
            answer = AIMessage("done", usage_metadata=usage)
        elif done in self.recalls:
            answer = AIMessage("", tool_calls=[{"id": f"c{done}", "name": "recall", "args": self.recalls[done]}])
        elif done in self.delegates:
            task = {"description": self.delegates[done], "subagent_type": self.subagent_name}
            answer = AIMessage("", tool_calls=[{"id": f"c{done}", "name": "task", "args": task}])
        else:
            call = {"id": f"c{done}", "name": "read_log", "args": {"step": done}}
            answer = AIMessage("I look.", tool_calls=[call], usage_metadata=usage)
        self.answers.append(answer)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def check_pairs(messages):
    """Fail as a provider does where a result does not stand right after its call."""
    due = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id in due, "a result without its call"
            due.discard(message.tool_call_id)
        else:
            assert not due, "a call without its result"
            due = {call["id"] for call in getattr(message, "tool_calls", ())}
    assert not due


def run_agent(agent, *, is_async=False, **config):
    """Let the agent work on one prompt and return its state."""
    given = {"messages": [HumanMessage(f"Find out why it is slow. {RULE}")]}
    options = {"recursion_limit": 1_000, **config}
    if is_async:
        return asyncio.run(agent.ainvoke(given, options))
    return agent.invoke(given, options)


@pytest.mark.parametrize("is_async", [False, True])
def test_agent_lives_past_its_window(is_async):
    """An agent that reads three windows of logs finishes; its state keeps the whole history; no request is refused; and
    each request begins as the one before it did, but for compactions.
    """
    model, events = StrictModel(), []
    middleware = HoldfastMiddleware(window=30_000, store=MemoryStore(), listener=events.append)
    state = run_agent(create_agent(model, [read_log], middleware=[middleware]), is_async=is_async)
    messages = state["messages"]
    assert messages[-1].content == "done"
    assert [message.content for message in messages if isinstance(message, ToolMessage)] == [
        write_log(step) for step in range(40)
    ]
    compactions = [event for event in events if isinstance(event, CompactionEnded)]
    assert model.refusals == 0
    assert len(compactions) >= 2
    breaks = 0
    for before, after in zip(model.seen, model.seen[1:], strict=False):
        breaks += after[: len(before)] != before
        assert RULE in str(after[0].content)
    assert breaks == len(compactions)


def test_agent_without_the_middleware_dies_of_the_overflow():
    """The same agent alone is refused."""
    model = StrictModel()
    with pytest.raises(ContextOverflowError):
        run_agent(create_agent(model, [read_log]))


def test_overflow_is_recovered_inside_of_the_call():
    """A window smaller than anybody knew: the refused call is made again with less, and the agent never sees it."""
    model = StrictModel(window=12_000)
    middleware = HoldfastMiddleware(window=200_000, store=MemoryStore())
    state = run_agent(create_agent(model, [read_log], middleware=[middleware]))
    assert state["messages"][-1].content == "done"
    assert 1 <= model.refusals <= 3


def test_short_answers_leave_more_room_for_the_history():
    """A limit of the answer, set on the model or for a call, is what is kept free; without one it is a larger share."""
    usable_tokens = {}
    for limit in (None, 500):
        model = StrictModel(steps=2, max_tokens=limit)
        middleware = HoldfastMiddleware(window=30_000, store=MemoryStore())
        state = run_agent(create_agent(model, [read_log], middleware=[middleware]))
        usable_tokens[limit] = middleware.get_history(state["messages"]).report().usable_tokens
    assert usable_tokens[500] > usable_tokens[None]


def test_recall_reads_back_what_is_not_shown():
    """The tool that the middleware registers finds a line of an early step."""
    model = StrictModel(recalls={35: {"search": "step 003, line 77"}})
    middleware = HoldfastMiddleware(window=30_000, store=MemoryStore())
    state = run_agent(create_agent(model, [read_log], middleware=[middleware]))
    (answer,) = [
        message for message in state["messages"] if isinstance(message, ToolMessage) and message.name == "recall"
    ]
    assert "step 003" in answer.content


def test_decisions_survive_a_restart_with_a_checkpointer():
    """A new agent on the same checkpointer and store shows what was shown before, so the prompt cache holds."""
    store, saver = MemoryStore(), InMemorySaver()
    seen = []
    for prompt in ("Find out why it is slow.", "And now?"):
        model = StrictModel(steps=25)
        middleware = HoldfastMiddleware(window=30_000, store=store)
        agent = create_agent(model, [read_log], middleware=[middleware], checkpointer=saver)
        config = {"recursion_limit": 1_000, "configurable": {"thread_id": "one"}}
        agent.invoke({"messages": [HumanMessage(prompt)]}, config)
        seen += model.seen
    first_of_second = next(index for index, shown in enumerate(seen) if shown[-1].content == "And now?")
    before, after = seen[first_of_second - 1], seen[first_of_second]
    assert is_extract(after[0].content)
    assert after[: len(before)] == before


def test_threads_do_not_mix():
    """Two threads with the same prompt are two conversations."""
    store = MemoryStore()
    for thread in ("one", "two"):
        model = StrictModel(steps=2)
        agent = create_agent(
            model, [read_log], middleware=[HoldfastMiddleware(store=store)], checkpointer=InMemorySaver()
        )
        run_agent(agent, configurable={"thread_id": thread})
    assert len(store.list_sessions()) == 2


def test_runs_without_a_thread_do_not_read_each_other():
    """Two users who begin with the same words, in an agent without threads, have logs of their own."""
    store = MemoryStore()
    middleware = HoldfastMiddleware(window=30_000, store=store)
    run_agent(create_agent(StrictModel(), [read_log], middleware=[middleware]))
    model = StrictModel(steps=2, recalls={1: {"search": "step 003, line 77"}})
    state = run_agent(create_agent(model, [read_log], middleware=[middleware]))
    (answer,) = [message for message in state["messages"] if message.name == "recall"]
    assert "step 003" not in answer.content.partition("\n")[2]
    assert len(store.list_sessions()) == 2


def test_two_blocks_of_one_unknown_kind_stay_apart():
    """Beside a text that is shortened, each block of a kind that Holdfast does not know stays where it is."""
    blocks = [{"type": "weather", "sky": "grey"}, {"type": "weather", "sky": "blue"}]
    text = "Look closely. " * 30_000
    model = StrictModel(steps=0, window=10**9)
    agent = create_agent(model, [], middleware=[HoldfastMiddleware(window=60_000, store=MemoryStore())])
    agent.invoke({"messages": [HumanMessage([blocks[0], {"type": "text", "text": text}, blocks[1]])]})
    shown = model.seen[0][0].content
    assert [block for block in shown if block["type"] == "weather"] == blocks
    assert len(str(shown)) < len(text)


def test_blocks_that_are_not_shortened_stay_as_they_are():
    """Pictures, thinking and provider blocks of kept messages go to the model as LangChain has them."""
    model = StrictModel(steps=0)
    content = [
        {"type": "text", "text": "What is this? " + "Look closely. " * 4_000},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "weather", "sky": "grey"},
    ]
    agent = create_agent(model, [], middleware=[HoldfastMiddleware(window=200_000, store=MemoryStore())])
    agent.invoke({"messages": [HumanMessage(content)]})
    shown = model.seen[0][0].content
    assert shown[-2:] == content[-2:]
    assert json.dumps(shown[0])


def test_a_store_that_cannot_be_opened_does_not_stop_the_agent(tmp_path, caplog):
    """The agent goes on with its whole history, and one line of the log says why."""
    model = StrictModel(steps=3)
    (tmp_path / "store.db").write_text("this is no database, and it is long enough to be looked at" * 100)
    middleware = HoldfastMiddleware(store=tmp_path / "store.db")
    state = run_agent(create_agent(model, [read_log], middleware=[middleware]))
    assert state["messages"][-1].content == "done"
    assert len([record for record in caplog.records if record.name == "holdfast.integrations"]) == 1


class EventRecorder(BaseCallbackHandler):
    """Keeps the custom events of a run, and the runs of the models."""

    def __init__(self):
        self.events = []
        self.parents = set()

    def on_custom_event(self, name, data, *, run_id, **_):
        """Keep an event with the id of the run that it belongs to."""
        self.events.append((name, data, run_id))

    def on_chat_model_start(self, serialized, messages, *, parent_run_id=None, **_):
        """Keep which runs call models."""
        self.parents.add(parent_run_id)


@pytest.mark.parametrize("is_async", [False, True])
def test_callback_handlers_get_the_events(is_async):
    """LangChain's callback handlers get each event of the listener, as a custom event of a run that calls a model."""
    recorder, heard = EventRecorder(), []
    middleware = HoldfastMiddleware(window=30_000, store=MemoryStore(), listener=heard.append)
    agent = create_agent(StrictModel(), [read_log], middleware=[middleware])
    run_agent(agent, is_async=is_async, callbacks=[recorder])
    assert [name for name, _, _ in recorder.events] == ["holdfast"] * len(heard)
    assert [data for _, data, _ in recorder.events] == [msgspec.to_builtins(event) for event in heard]
    assert {run_id for _, _, run_id in recorder.events} <= recorder.parents


def test_a_middleware_that_is_called_by_no_agent_tells_its_listener_alone():
    """Outside of a run there are no callback handlers; the listener gets the events, and nothing is wrong."""
    heard = []
    middleware = HoldfastMiddleware(window=6_000, store=MemoryStore(), listener=heard.append)
    messages = [HumanMessage(write_log(0, 2_000)), AIMessage("I see."), HumanMessage("And now?")]
    request = ModelRequest(model=StrictModel(), messages=messages, tools=[], state={}, runtime=None)
    middleware.wrap_model_call(request, lambda call: call)
    assert heard


def test_deep_agents_leave_it_to_ours():
    """``HoldfastDeepMiddleware`` takes the place of deepagents' own summaries: in a run of three windows none is
    written, nothing is refused, and a sub-agent that deepagents starts has it too.
    """
    deepagents = pytest.importorskip("deepagents", reason="deepagents is not installed")
    store = MemoryStore()
    model = StrictModel(steps=60, delegates={20: "Look at the other server."}, profile={"max_input_tokens": 30_000})
    agent = deepagents.create_deep_agent(model, [read_log], middleware=[HoldfastDeepMiddleware(store=store)])
    state = run_agent(agent)
    assert state["messages"][-1].content == "done"
    assert model.refusals == 0
    # The steps of both, and the last word of both.
    assert len(model.answers) == 62
    assert len(store.list_sessions()) == 2


@pytest.mark.parametrize(
    ("name", "thinking"),
    [("claude-haiku-4-5", {"type": "enabled", "budget_tokens": 1_024}), ("claude-opus-5-5", {"type": "adaptive"})],
)
def test_a_real_model_with_thinking_is_never_refused(strict_provider, name, thinking):
    """LangChain's own model and the SDK on the wire: a provider that refuses edited thinking, and for the newer model
    thinking with another history before it, refuses nothing over three windows.
    """
    anthropic = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
    script = [ScriptedAnswer("", (("read_log", {"step": step}),), "Let me see.") for step in range(30)]
    script.append(ScriptedAnswer("done", thinking="So."))
    served = strict_provider(window=32_000, script=script)
    model = anthropic.ChatAnthropic(
        model=name, base_url=served.url, api_key="any", max_tokens=2_000, thinking=thinking, max_retries=0
    )
    events = []
    middleware = HoldfastMiddleware(window=32_000, store=MemoryStore(), listener=events.append)
    state = run_agent(create_agent(model, [read_log], middleware=[middleware]))
    model._client.close()
    assert "done" in str(state["messages"][-1].content)
    requests = served.provider.requests
    assert [request.rule for request in requests if not request.tokens] == []
    assert len(requests) == len(script)
    assert any(isinstance(event, CompactionEnded) for event in events)
    assert sum("Let me see." in str(message.content) for message in state["messages"]) == 30


class ExtraTool(AgentMiddleware):
    """Gives the model a tool in a form that only LangChain or the provider knows."""

    def __init__(self, extra_tool):
        super().__init__()
        self.extra_tool = extra_tool

    def wrap_model_call(self, request, handler):
        """Call the model with one tool more."""
        return handler(request.override(tools=[*request.tools, self.extra_tool]))


def count_servers(region: str) -> int:
    """Count the servers of a region."""
    return len(region)


@pytest.mark.parametrize(
    "extra_tool", [count_servers, {"google_search": {}}, {"type": "mcp_toolset", "mcp_server_name": "servers"}]
)
def test_a_tool_of_any_form_leaves_the_agent_protected(extra_tool, caplog):
    """A plain function, and a provider's own tool without name or function, are measured as they are."""
    model = StrictModel()
    middleware = [ExtraTool(extra_tool), HoldfastMiddleware(window=30_000, store=MemoryStore())]
    state = run_agent(create_agent(model, [read_log], middleware=middleware))
    assert state["messages"][-1].content == "done"
    assert model.refusals == 0
    assert [record.message for record in caplog.records if record.name == "holdfast.integrations"] == []


def test_tools_of_one_name_have_sizes_of_their_own():
    """A tool that is replaced by a larger one of the same name is measured anew, and so is a format of the answer."""

    def estimate(description, response_format=None):
        tools = [tool("look", description=description)(count_servers)]
        request = ModelRequest(
            model=StrictModel(), messages=[], tools=tools, state={}, runtime=None, response_format=response_format
        )
        return middleware._estimate_setup(request)

    middleware = HoldfastMiddleware(store=MemoryStore())
    small = estimate("Look.")
    assert estimate("Look closely. " * 500) > small + 500
    answer = {"title": "Answer", "type": "object", "properties": {"why": {"description": "The reason. " * 500}}}
    assert estimate("Look.", AutoStrategy(answer)) > small + 500
    assert estimate("Look.", ToolStrategy(answer)) > small + 500
    assert estimate("Look.", ProviderStrategy(answer)) > small + 500
    assert estimate("Look.") == small


def test_an_agent_with_a_tool_named_like_ours_is_told_once(caplog):
    """LangChain keeps the agent's own ``recall``; the log says once that nothing can be read back; the run goes on."""

    @tool
    def recall(topic: str) -> str:
        """Remember something."""
        return topic

    model = StrictModel()
    middleware = HoldfastMiddleware(window=30_000, store=MemoryStore())
    state = run_agent(create_agent(model, [read_log, recall], middleware=[middleware]))
    assert state["messages"][-1].content == "done"
    assert model.refusals == 0
    (record,) = [record for record in caplog.records if record.name == "holdfast.integrations"]
    assert "tool of its own called recall" in record.message


class TimeStamp(AgentMiddleware):
    """Puts something new before the first message that the model sees, at each call."""

    calls = 0

    def wrap_model_call(self, request, handler):
        """Call the model with the number of the call."""
        self.calls += 1
        first = request.messages[0]
        stamped = first.model_copy(update={"content": f"[call {self.calls}] {first.content}"})
        return handler(request.override(messages=[stamped, *request.messages[1:]]))


def test_a_middleware_that_edits_the_first_message_starts_no_new_conversation():
    """A conversation is known by the state's first message: there is one in the store, and ``recall`` reads it."""
    store = MemoryStore()
    model = StrictModel(steps=6, recalls={5: {"search": "step 003, line 77"}})
    middleware = [TimeStamp(), HoldfastMiddleware(window=30_000, store=store)]
    state = run_agent(create_agent(model, [read_log], middleware=middleware))
    (answer,) = [message for message in state["messages"] if getattr(message, "name", "") == "recall"]
    assert "step 003" in answer.content.replace("«", "").replace("»", "").partition("\n")[2]
    assert len(store.list_sessions()) == 1


class AskHuman(AgentMiddleware):
    """Asks a human before each call of the model."""

    calls = 0

    def wrap_model_call(self, request, handler):
        """Ask in the words of an overflow."""
        self.calls += 1
        interrupt("prompt is too long: 60000 tokens > 20000 maximum")
        return handler(request)


def test_an_interrupt_is_no_error():
    """What a graph raises to wait for a human goes through, whatever it says: nothing is tried again."""
    ask = AskHuman()
    middleware = [HoldfastMiddleware(store=MemoryStore()), ask]
    agent = create_agent(StrictModel(), [read_log], middleware=middleware, checkpointer=InMemorySaver())
    messages = [HumanMessage("Find out why it is slow.")]
    for step in range(20):
        messages.append(AIMessage("", tool_calls=[{"id": f"c{step}", "name": "read_log", "args": {"step": step}}]))
        messages.append(ToolMessage(write_log(step), tool_call_id=f"c{step}", name="read_log"))
    state = agent.invoke({"messages": messages}, {"configurable": {"thread_id": "one"}})
    assert state["__interrupt__"]
    assert ask.calls == 1


def test_calls_with_broken_arguments_are_calls():
    """LangChain sends a call whose arguments are no JSON, and its error: they are a call and its result, and count."""
    broken = '{"step": "' + "x" * 30_000
    message = AIMessage("", invalid_tool_calls=[{"id": "c1", "name": "read_log", "args": broken, "error": None}])
    assert read_message(message).message.calls == (ToolCall("c1", "read_log", broken),)


def test_the_model_inside_of_another_runnable_is_found():
    """Name, window, limit of the answer and API are those of the provider's model, also with fallbacks and bound."""
    anthropic = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
    model = anthropic.ChatAnthropic(model="claude-haiku-4-5", api_key="any", max_tokens=3_000)
    by_configuration = init_chat_model(
        "claude-haiku-4-5", model_provider="anthropic", api_key="any", max_tokens=3_000, configurable_fields=("model",)
    )
    wrapped_models = (model.with_fallbacks([model]), model.bind(stop=["x"]), model.with_retry(), by_configuration)
    for wrapped in (model, *wrapped_models):
        request = ModelRequest(model=wrapped, messages=[], tools=[], state={}, runtime=None)
        target = _choose_target(request, None)
        assert (target.api, target.model, target.limits.window) == ("anthropic", "claude-haiku-4-5", 200_000)
        assert target.limits.requested_output == 3_000
    request = ModelRequest(
        model=model, messages=[], tools=[], state={}, runtime=None, model_settings={"max_tokens": 4_000}
    )
    assert _choose_target(request, 50_000).limits.requested_output == 4_000


def test_an_answer_that_counts_into_the_window_is_kept_free(strict_provider):
    """A provider that wants the output asked for to fit beside the prompt says so once; then it stays free."""
    anthropic = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
    script = [ScriptedAnswer("", (("read_log", {"step": step}),)) for step in range(20)] + [ScriptedAnswer("done")]
    served = strict_provider(window=24_000, script=script)
    model = anthropic.ChatAnthropic(
        model="claude-haiku-4-5", base_url=served.url, api_key="any", max_tokens=16_000, max_retries=0
    )
    middleware = HoldfastMiddleware(window=24_000, store=MemoryStore())
    state = run_agent(create_agent(model, [read_log], middleware=[middleware]))
    model._client.close()
    assert "done" in str(state["messages"][-1].content)
    assert len(served.provider.requests) == len(script) + 1


def test_history_at_the_provider_is_not_used_once_less_is_shown(strict_provider):
    """``use_previous_response_id`` sends only what is new, and the provider adds all from before: after a compaction
    the reduced view is sent instead.
    """
    openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    script = [ScriptedAnswer("", (("read_log", {"step": step}),)) for step in range(20)] + [ScriptedAnswer("done")]
    served = strict_provider(window=16_000, script=script)
    model = openai.ChatOpenAI(
        model="gpt-5", base_url=f"{served.url}/v1", api_key="any", max_retries=0, use_previous_response_id=True
    )
    middleware = HoldfastMiddleware(window=16_000, store=MemoryStore())
    state = run_agent(create_agent(model, [read_log], middleware=[middleware]))
    assert "done" in str(state["messages"][-1].content)
    assert len(served.provider.requests) == len(script)
    assert sum(b"previous_response_id" in request.body for request in served.provider.incoming_requests) > 2


def test_a_sub_agent_of_ones_own_has_the_middleware_of_its_description():
    """deepagents gives a described sub-agent its own summaries; with ours in its description, ours work there."""
    deepagents = pytest.importorskip("deepagents", reason="deepagents is not installed")
    store = MemoryStore()
    model = StrictModel(
        steps=60,
        delegates={20: "Look at the other server."},
        subagent_name="looker",
        profile={"max_input_tokens": 30_000},
    )
    looker = {
        "name": "looker",
        "description": "Looks at servers.",
        "system_prompt": "You look at servers.",
        "middleware": [HoldfastDeepMiddleware(store=store)],
    }
    agent = deepagents.create_deep_agent(
        model, [read_log], middleware=[HoldfastDeepMiddleware(store=store)], subagents=[looker]
    )
    state = run_agent(agent)
    assert state["messages"][-1].content == "done"
    assert model.refusals == 0
    assert len(store.list_sessions()) == 2


def test_a_large_first_prompt_of_a_deep_agent_can_be_recalled():
    """deepagents shows the model a preview of a large prompt; ``recall`` finds the conversation even so."""
    deepagents = pytest.importorskip("deepagents", reason="deepagents is not installed")
    model = StrictModel(window=100_000, steps=3, recalls={2: {"search": "step 001, line 77"}})
    agent = deepagents.create_deep_agent(
        model, [read_log], middleware=[HoldfastDeepMiddleware(window=100_000, store=MemoryStore())]
    )
    prompt = "\n".join(f"line {line} of the prompt" for line in range(30_000))
    state = agent.invoke({"messages": [HumanMessage(prompt)]}, {"recursion_limit": 1_000})
    (answer,) = [message for message in state["messages"] if getattr(message, "name", "") == "recall"]
    assert "step 001" in answer.content.replace("«", "").replace("»", "").partition("\n")[2]


@pytest.mark.parametrize("wrong", [{"window": "200k"}, {"window": 0}, {"policy": "pi"}, {"listener": "print"}])
def test_an_argument_of_another_type_is_refused_at_once(wrong):
    """A mistake is an error where it is made: later the agent would go on, but without any help."""
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        HoldfastMiddleware(**wrong)


def test_two_middlewares_on_one_agent_are_refused():
    """LangChain says so when the agent is made: a second one would shorten what the first has shortened."""
    middleware = [HoldfastMiddleware(store=MemoryStore()), HoldfastMiddleware(store=MemoryStore())]
    with pytest.raises(AssertionError, match="duplicate middleware"):
        create_agent(StrictModel(), [read_log], middleware=middleware)


def test_the_example_runs(capsys):
    """The example finishes, and its model was shown a small part of what its agent said."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said, shown = re.findall(r"([\d,]{5,})", capsys.readouterr().out)[:2]
    assert int(shown.replace(",", "")) < int(said.replace(",", "")) / 3
