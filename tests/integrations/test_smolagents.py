"""The model for smolagents in real agents, with a model behind it that refuses what a provider refuses."""

from __future__ import annotations

import json
import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("smolagents", reason="smolagents is not installed (pip install 'holdfast[smolagents]')")

from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from smolagents import CodeAgent, ToolCallingAgent, tool
from smolagents.memory import ActionStep, TaskStep
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    MessageRole,
    Model,
    get_clean_message_list,
    tool_role_conversions,
)
from smolagents.monitoring import LogLevel, TokenUsage
from smolagents.utils import AgentGenerationError

from holdfast.events import CompactionEnded
from holdfast.hosts.given_conversation import ShownMessage
from holdfast.integrations.smolagents import HoldfastModel
from holdfast.integrations.smolagents.messages import read_messages, write_messages
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import ScriptedAnswer

EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "smolagents_agent.py"
RULE = "Never restart the server."
PROMPT = f"Find out why it is slow. {RULE}"
AGENT_CLASSES = [CodeAgent, ToolCallingAgent]


def write_log(step, lines=120):
    """Return what the tool prints."""
    return "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


@tool
def read_log(step: int) -> str:
    """Read the log of one step.

    Args:
        step: The number of the step.
    """
    return write_log(step)


class ProviderError(Exception):
    """What a client of a provider raises."""

    status_code = 400


class StrictModel(Model):
    """A model that reads one log after the other, and refuses what its provider would refuse."""

    def __init__(self, steps=40, window=30_000, calls=None, calls_per_step=1, **options):
        super().__init__(**options)
        self.steps = steps
        self.window = window
        self.calls = calls or {}
        """Name and arguments of the call that is made in place of a step."""
        self.calls_per_step = calls_per_step
        self.speaks_before_refusal = False
        self.seen = []
        """The messages of each step, as the model was given them."""
        self.plan_requests = []
        self.done = 0
        self.refusals = 0

    def generate(self, messages, stop_sequences=None, response_format=None, tools_to_call_from=None):
        """Refuse, call a tool or end."""
        tokens = self.check_request(messages, tools_to_call_from)
        usage = TokenUsage(tokens, 10)
        if "<end_plan>" in (stop_sequences or ()):
            self.plan_requests.append(messages)
            return ChatMessage(MessageRole.ASSISTANT, "1. Read the logs.", token_usage=usage)
        self.seen.append(messages)
        if stop_sequences is None:
            return ChatMessage(MessageRole.ASSISTANT, "out of steps", token_usage=usage)
        text, calls = self.choose_answer(is_code=tools_to_call_from is None)
        if response_format is not None:
            code = re.search(r"<code>\n(.*)\n</code>", text, re.DOTALL).group(1)
            text = json.dumps({"thought": "I look.", "code": code})
        tool_calls = [ChatMessageToolCall(function, id_, "function") for id_, function in calls]
        return ChatMessage(MessageRole.ASSISTANT, text, tool_calls or None, token_usage=usage)

    def check_request(self, messages, tools):
        """Return the tokens of a request; raise as a provider if they are too many."""
        text_messages = get_clean_message_list(messages, tool_role_conversions)
        definitions = [[tool.name, tool.description, tool.inputs] for tool in tools or ()]
        tokens = estimate_text_tokens(re.sub(r"'image': '[^']*'", "", str([definitions, text_messages])))
        if tokens > self.window:
            self.refusals += 1
            raise ProviderError(f"prompt is too long: {tokens} tokens > {self.window} maximum")
        check_history(messages)
        return tokens

    def choose_answer(self, *, is_code):
        """Return the text and the tool calls of the next answer."""
        number, self.done = self.done, self.done + 1
        calls = [("read_log", {"step": number})] * self.calls_per_step
        if number >= self.steps:
            calls = [("final_answer", {"answer": "done"})]
        if number in self.calls:
            calls = [self.calls[number]]
        if is_code:
            lines = [
                f"print({name}({', '.join(f'{key}={value!r}' for key, value in args.items())}))" for name, args in calls
            ]
            return "I look.\n<code>\n" + "\n".join(lines) + "\n</code>", []
        functions = [ChatMessageToolCallFunction(json.dumps(arguments), name) for name, arguments in calls]
        return "I look.", [(f"c{number}_{place}", function) for place, function in enumerate(functions)]


class StreamingModel(StrictModel):
    """The same, in pieces."""

    def generate_stream(self, messages, **options):
        """Stream the answer of ``generate``."""
        if self.speaks_before_refusal:
            yield ChatMessageStreamDelta("Well")
        answer = self.generate(messages, **options)
        for piece in re.findall(r".{1,5}", answer.content, re.DOTALL):
            yield ChatMessageStreamDelta(piece)
        for index, call in enumerate(answer.tool_calls or ()):
            delta = ChatMessageToolCallStreamDelta(index, call.id, "function", call.function)
            yield ChatMessageStreamDelta(tool_calls=[delta])
        yield ChatMessageStreamDelta("", token_usage=answer.token_usage)


def check_history(messages):
    """Fail as a strict provider of these messages would: an observation follows its call, and nothing is empty."""
    is_call_open = False
    before = None
    for message in messages:
        assert isinstance(message, ChatMessage)
        assert message.content, "a message without content"
        assert all(element.get("text") != "" for element in message.content), "an empty text"
        is_picture = all(element["type"] == "image" for element in message.content)
        if message.role == MessageRole.TOOL_RESPONSE:
            assert before in (MessageRole.TOOL_CALL, MessageRole.TOOL_RESPONSE, MessageRole.ASSISTANT), "an orphan"
            is_call_open = False
        assert not is_call_open or is_picture or message.role == MessageRole.TOOL_RESPONSE, "a call without result"
        is_call_open = is_call_open or message.role == MessageRole.TOOL_CALL
        if not is_picture:
            before = message.role
    assert not is_call_open


def make_model(model, window=30_000, **options):
    """Return the model under test around ``model``."""
    options.setdefault("store", MemoryStore())
    return HoldfastModel(model, window=window, **options)


def make_agent(agent_class, model, tools=(read_log,), **options):
    """Return an agent that prints nothing."""
    options = {"max_steps": 60, "verbosity_level": LogLevel.OFF, **options}
    own_tools = [model.recall_tool] if isinstance(model, HoldfastModel) else []
    return agent_class(tools=[*tools, *own_tools], model=model, **options)


def list_observations(agent):
    """Return what the agent has observed in each step, as its memory has it."""
    return [step.observations for step in agent.memory.steps if isinstance(step, ActionStep)]


def get_text(message):
    """Return the texts of a message."""
    return "\n".join(element["text"] for element in message.content if element["type"] == "text")


def count_breaks(seen):
    """Return how many requests do not begin as the one before them."""
    breaks = 0
    for before, after in pairwise(seen):
        breaks += [get_text(message) for message in after[: len(before)]] != [get_text(message) for message in before]
    return breaks


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_agent_lives_past_its_window(agent_class, is_streamed):
    """An agent that reads three windows of logs finishes; its memory stays whole; no request is refused; and each
    request begins as the one before it did, but for compactions.
    """
    strict_model, events = StreamingModel(), []
    model = make_model(strict_model, listener=events.append)
    agent = make_agent(agent_class, model, stream_outputs=is_streamed)
    assert agent.run(PROMPT) == "done"
    observations = list_observations(agent)
    assert all(write_log(step) in observations[step] for step in range(40))
    compactions = [event for event in events if isinstance(event, CompactionEnded)]
    assert strict_model.refusals == 0
    assert len(compactions) >= 2
    assert count_breaks(strict_model.seen) == len(compactions)
    assert all(RULE in get_text(messages[1]) for messages in strict_model.seen)
    inputs = [step.model_input_messages for step in agent.memory.steps if isinstance(step, ActionStep)]
    assert len(inputs[-1]) > len(strict_model.seen[-1])


@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_agent_without_it_dies_of_the_overflow(agent_class):
    """The same agent with the bare model is refused, and its run ends."""
    with pytest.raises(AgentGenerationError, match="prompt is too long"):
        make_agent(agent_class, StrictModel()).run(PROMPT)


def make_provider_model(name, url):
    """Return a model of smolagents whose provider is at ``url``."""
    if name == "openai":
        from smolagents import OpenAIModel

        client = {"max_retries": 0}
        return OpenAIModel("gpt-4.1", api_base=f"{url}/v1", api_key="any", client_kwargs=client, retry=False)
    if name == "inference-client":
        from huggingface_hub import InferenceClient
        from smolagents import InferenceClientModel

        client = InferenceClient(base_url=f"{url}/v1", api_key="any")
        return InferenceClientModel("gpt-4.1", client=client, retry=False)
    pytest.importorskip("litellm", reason="LiteLLM is not installed (pip install 'smolagents[litellm]')")
    from smolagents import LiteLLMModel

    return LiteLLMModel("openai/gpt-4.1", api_base=f"{url}/v1", api_key="any", retry=False, max_retries=0)


# The clients leave some connections open, and LiteLLM warns of types that its answers do not have.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("window", [30_000, 200_000])
@pytest.mark.parametrize("name", ["openai", "inference-client", "litellm"])
@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_models_of_smolagents_live_past_the_window_of_a_strict_provider(
    agent_class, name, window, is_streamed, strict_provider, monkeypatch
):
    """The models of smolagents with the clients of their providers, against a server that refuses what those refuse: an
    agent finishes with no refusal, or with one if its window is not known.
    """
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    script = [ScriptedAnswer("", (("read_log", {"step": step}),)) for step in range(25)]
    script.append(ScriptedAnswer("", (("final_answer", {"answer": "done"}),)))
    if agent_class is CodeAgent:
        script = [ScriptedAnswer(f"I look.\n<code>\nprint(read_log({step}))\n</code>") for step in range(25)]
        script.append(ScriptedAnswer("<code>\nfinal_answer('done')\n</code>"))
    served = strict_provider(window=30_000, script=script)
    model = make_model(make_provider_model(name, served.url), window=window)
    agent = make_agent(agent_class, model, stream_outputs=is_streamed)
    assert agent.run(PROMPT) == "done"
    assert len(served.provider.requests) == 26 + (window != 30_000)
    assert all(write_log(step) in list_observations(agent)[step] for step in range(25))


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_overflow_is_recovered_inside_of_the_call(agent_class, is_streamed):
    """A window smaller than anybody knew: the refused call is made again with less, and the agent never sees it."""
    strict_model = StreamingModel(window=12_000)
    agent = make_agent(agent_class, make_model(strict_model, window=200_000), stream_outputs=is_streamed)
    assert agent.run(PROMPT) == "done"
    assert 1 <= strict_model.refusals <= 3
    assert len(list_observations(agent)) == 41


def test_a_refusal_after_the_answer_has_begun_is_the_agents():
    """What the user has seen is not said again: the error reaches the agent."""
    strict_model = StreamingModel(window=12_000)
    strict_model.speaks_before_refusal = True
    agent = make_agent(ToolCallingAgent, make_model(strict_model, window=200_000), stream_outputs=True)
    with pytest.raises(AgentGenerationError, match="prompt is too long"):
        agent.run(PROMPT)
    assert strict_model.refusals == 1


def test_another_error_is_the_agents():
    """An error that is no overflow reaches the agent as it is, after one call."""

    class BrokenModel(StrictModel):
        def generate(self, messages, **_):
            self.refusals += 1
            raise ValueError("the key is wrong")

    strict_model = BrokenModel()
    with pytest.raises(AgentGenerationError, match="the key is wrong"):
        make_agent(CodeAgent, make_model(strict_model)).run(PROMPT)
    assert strict_model.refusals == 1


@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_recall_reads_back_what_is_not_shown(agent_class):
    """The tool finds a line of an early step, reads it, and explains what is wrong with its arguments."""
    calls = {35: ("recall", {"search": '"step 003, line 77"'}), 36: ("recall", {"id": "nothing"})}
    model = make_model(StrictModel(calls=calls))
    agent = make_agent(agent_class, model)
    assert agent.run(PROMPT) == "done"
    found, mistake = list_observations(agent)[35:37]
    id_ = re.search(r'recall\(id="(\w+)"\)', found).group(1)
    assert "step 003, line 77: 327 ms" in model.recall_tool(id=id_, search="line 77")
    assert len(mistake) < 500
    assert "«restart» the server" in model.get_history().answer_recall({"search": "restart"})


@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_one_result_that_is_larger_than_the_window_is_a_preview(agent_class):
    """The model sees a part of it and reads on with ``recall``; the agent keeps it whole."""

    @tool
    def read_log(step: int) -> str:
        """Read all of it.

        Args:
            step: The number of the step.
        """
        return write_log(step, 1_500)

    calls = {1: ("recall", {"search": '"step 000, line 1432:"'})}
    strict_model = StrictModel(steps=2, calls=calls)
    agent = make_agent(agent_class, make_model(strict_model), tools=[read_log])
    assert agent.run(PROMPT) == "done"
    assert strict_model.refusals == 0
    shown = get_text(strict_model.seen[1][-1])
    assert shown.startswith("Observation:\n")
    assert "recall(" in shown
    whole, answer, *_ = list_observations(agent)
    assert write_log(0, 1_500) in whole
    assert "line 1432" in answer


def test_parallel_calls_stay_together():
    """Three calls in one answer, whose results smolagents joins, live past the window."""
    strict_model = StrictModel(steps=15, calls_per_step=3)
    agent = make_agent(ToolCallingAgent, make_model(strict_model))
    assert agent.run(PROMPT) == "done"
    assert strict_model.refusals == 0
    assert list_observations(agent)[3] == "\n".join([write_log(3)] * 3)


@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_plans_live_past_the_window(agent_class):
    """The requests for plans, which show the memory without the answers, are a conversation of their own; those of
    steps still begin as the one before, but for compactions; and what smolagents says to a plan is no word of the
    user.
    """
    store, events, strict_model = MemoryStore(), [], StrictModel()
    model = make_model(strict_model, store=store, listener=events.append)
    agent = make_agent(agent_class, model, planning_interval=5)
    assert agent.run(PROMPT) == "done"
    assert strict_model.refusals == 0
    assert len(strict_model.plan_requests) == 9
    compactions = [event for event in events if isinstance(event, CompactionEnded) and "plans" not in event.session]
    assert count_breaks(strict_model.seen) == len(compactions)
    assert "carry out this plan" not in get_text(strict_model.seen[-1][1])
    # The first plan is asked for without the task's message.
    assert len(store.list_sessions()) == 3


def test_the_last_answer_lives_past_the_window():
    """The request that smolagents makes when the steps are used up has a system prompt of its own, and fits too; and
    the agent goes on with another task.
    """
    strict_model = StrictModel()
    agent = make_agent(CodeAgent, make_model(strict_model), max_steps=20)
    assert agent.run(PROMPT) == "out of steps"
    assert strict_model.refusals == 0
    assert RULE in get_text(strict_model.seen[-1][1])
    assert agent.run("Go on.", reset=False, max_steps=60) == "done"
    assert RULE in get_text(strict_model.seen[-1][1])
    assert strict_model.refusals == 0


def test_a_conversation_goes_on_with_the_next_task():
    """With ``reset=False`` the memory of all tasks is one conversation, and its prompt cache holds."""
    store, events, strict_model = MemoryStore(), [], StrictModel(steps=0)
    agent = make_agent(ToolCallingAgent, make_model(strict_model, store=store, listener=events.append))
    for number in range(30):
        rule = RULE if number == 0 else ""
        agent.run(f"{rule} Read this: {write_log(number)}", reset=False)
    compactions = [event for event in events if isinstance(event, CompactionEnded)]
    assert compactions
    assert strict_model.refusals == 0
    assert count_breaks(strict_model.seen) == len(compactions)
    assert RULE in str(strict_model.seen[-1])
    assert len(store.list_sessions()) == 1


@pytest.mark.parametrize("planning_interval", [None, 3])
def test_runs_that_begin_alike_do_not_mix(planning_interval):
    """An agent that gets the same task twice has two conversations, and so have two agents with two models: nothing of
    one can be read in the other.
    """
    store = MemoryStore()
    first = make_model(StrictModel(steps=2), store=store)
    agent = make_agent(ToolCallingAgent, first, planning_interval=planning_interval)
    agent.run("Hello")
    agent.run("My code is 4711.", reset=False)
    assert "4711" in first.recall_tool(search="code")
    agent.run("Hello")
    assert "4711" not in first.recall_tool(search="code")
    second = make_model(StrictModel(steps=2), store=store)
    make_agent(ToolCallingAgent, second).run("Hello")
    assert "4711" not in second.recall_tool(search="code")
    keys = [session.key for session in store.list_sessions()]
    assert len([key for key in keys if not key.endswith("-plans")]) == 3


@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_a_managed_agent_is_a_conversation_of_its_own(agent_class):
    """A managed agent that fills its own window reports, and its manager goes on; each reads back its own texts."""
    store = MemoryStore()
    child_model = make_model(StrictModel(), store=store)
    child = make_agent(agent_class, child_model, name="child", description="Reads logs.", provide_run_summary=True)
    calls = {0: ("child", {"task": PROMPT})}
    model = make_model(StrictModel(steps=3, calls=calls), store=store)
    parent = make_agent(agent_class, model, managed_agents=[child])
    assert parent.run("Ask the child.") == "done"
    assert "done" in list_observations(parent)[0]
    assert child_model.wrapped_model.refusals == 0
    assert model.wrapped_model.refusals == 0
    assert "Ask the child" in model.recall_tool(search='"Ask the child"')
    assert "[nothing" in child_model.recall_tool(search='"Ask the child"')
    assert len(store.list_sessions()) == 2


def test_agents_may_share_a_model():
    """A manager and its managed agent with one model between them are two conversations, which both live."""
    store = MemoryStore()
    strict_model = StrictModel(calls={0: ("child", {"task": PROMPT}), 41: ("final_answer", {"answer": "child"})})
    strict_model.steps = 45
    model = make_model(strict_model, store=store)
    child = make_agent(ToolCallingAgent, model, name="child", description="Reads logs.")
    parent = make_agent(ToolCallingAgent, model, managed_agents=[child])
    assert parent.run("Ask the child.") == "done"
    assert strict_model.refusals == 0
    assert "Ask the child." in get_text(strict_model.seen[-1][1])
    assert len(store.list_sessions()) == 2


def test_decisions_survive_a_restart():
    """With a name of the session, an agent whose memory was put back shows what was shown before."""
    store, strict_model = MemoryStore(), StrictModel(steps=25)
    agent = make_agent(CodeAgent, make_model(strict_model, store=store, session="one"))
    agent.run(PROMPT)
    restarted_model = StrictModel(steps=0)
    restarted = make_agent(CodeAgent, make_model(restarted_model, store=store, session="one"))
    restarted.memory.steps = agent.memory.steps
    restarted.run("And now?", reset=False)
    assert count_breaks([strict_model.seen[-1], restarted_model.seen[0]]) == 0
    assert len(restarted_model.seen[0]) < 30
    assert len(store.list_sessions()) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_usage_of_answers_is_recorded(agent_class, is_streamed):
    """What the provider counted is known to the report, though it is three times what we count."""

    class CountingModel(StreamingModel):
        def check_request(self, messages, tools):
            return 3 * super().check_request(messages, tools)

    model = make_model(CountingModel(steps=4))
    agent = make_agent(agent_class, model, stream_outputs=is_streamed)
    agent.run(PROMPT)
    counted = agent.memory.steps[-1].token_usage.input_tokens
    assert abs(model.get_history().report().tokens - counted) < 0.1 * counted


def test_the_system_prompt_and_the_tools_are_counted():
    """A tool with a long description is in the request twice: in the system prompt and among the tools."""

    class UncountedModel(StrictModel):
        def generate(self, messages, **options):
            answer = super().generate(messages, **options)
            answer.token_usage = None
            return answer

    @tool
    def read_log(step: int) -> str:
        """Read the log.

        Args:
            step: The number of the step.

        """
        return write_log(step)

    read_log.description = "Read the log of a step, which is slow. " * 400
    model = make_model(UncountedModel(steps=2))
    make_agent(ToolCallingAgent, model, tools=[read_log]).run(PROMPT)
    description_tokens = estimate_text_tokens(read_log.description)
    assert model.get_history().report().setup_tokens > 2 * description_tokens


def test_a_memory_that_a_callback_edits_is_followed():
    """An observation that a callback rewrites is shown as the memory has it, and what was before it as before."""

    def edit(step, agent):
        if step.step_number == 6:
            agent.memory.steps[-1].observations = "The log is empty."

    strict_model, store = StrictModel(steps=8), MemoryStore()
    agent = make_agent(CodeAgent, make_model(strict_model, store=store), step_callbacks=[edit])
    assert agent.run(PROMPT) == "done"
    assert "The log is empty." in str(strict_model.seen[-1])
    assert "step 004, line 7" not in str(strict_model.seen[-1])
    assert count_breaks(strict_model.seen) == 1
    assert len(store.list_sessions()) == 1


@pytest.mark.parametrize("agent_class", AGENT_CLASSES)
def test_steps_share_their_messages(agent_class):
    """What smolagents keeps of the requests of all steps takes no more room than one history, and says the same."""
    agent = make_agent(agent_class, make_model(StrictModel(steps=8, window=1_000_000)))
    plain_agent = make_agent(agent_class, StrictModel(steps=8, window=1_000_000))
    for each in (agent, plain_agent):
        each.run(PROMPT)
    requests, plain_requests = list_requests(agent), list_requests(plain_agent)
    assert len(requests) == 9
    for older, newer in pairwise(requests):
        assert len(older) < len(newer)
        assert all(message is other for message, other in zip(older, newer, strict=False))
    assert [messages[1:] for messages in requests] == [messages[1:] for messages in plain_requests]


def test_a_step_keeps_what_it_was_shown():
    """A later change of the memory does not reach the messages that are kept with the steps before it."""

    def cut_older_observations(step, agent):
        for older in agent.memory.steps:
            if isinstance(older, ActionStep):
                older.observations = "cut"

    agent = make_agent(ToolCallingAgent, make_model(StrictModel(steps=4)), step_callbacks=[cut_older_observations])
    agent.run(PROMPT)
    observations = [[get_text(message) for message in request[2:]] for request in list_requests(agent)]
    assert "step 000, line" in observations[1][-1]
    assert "step 000, line" not in "".join(observations[2])


def list_requests(agent):
    """Return the messages that the agent keeps with its steps."""
    return [step.model_input_messages for step in agent.memory.steps if isinstance(step, ActionStep)]


def test_old_pictures_that_a_callback_takes_away_cost_no_compaction():
    """The callback of agents that look at screenshots, as the documentation of smolagents has it, changes the past in
    each step; an extract that covers such a step holds all the same.
    """

    def keep_two_screenshots(step, agent):
        for older in agent.memory.steps:
            if isinstance(older, ActionStep) and older.step_number <= step.step_number - 2:
                older.observations_images = None
        step.observations_images = [Image.new("RGB", (8, 8), (step.step_number, 0, 0))]

    strict_model, events, store = StrictModel(), [], MemoryStore()
    model = make_model(strict_model, store=store, listener=events.append)
    agent = make_agent(CodeAgent, model, step_callbacks=[keep_two_screenshots])
    assert agent.run(PROMPT) == "done"
    assert strict_model.refusals == 0
    assert len([event for event in events if isinstance(event, CompactionEnded)]) <= 6
    pictures = [element for message in strict_model.seen[-1] for element in message.content if "image" in element]
    assert len(pictures) == 2
    assert len(store.list_sessions()) == 1


def test_pictures_that_are_shown_are_the_agents_own():
    """Pictures of the task and of observations reach the model as they are, also beside a text that is shortened."""
    task_picture, screenshot = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))

    def add_screenshot(step, agent):
        step.observations_images = [screenshot]

    @tool
    def read_log(step: int) -> str:
        """Read all of it.

        Args:
            step: The number of the step.
        """
        return write_log(step, 1_500)

    strict_model = StrictModel(steps=2)
    agent = make_agent(CodeAgent, make_model(strict_model), tools=[read_log], step_callbacks=[add_screenshot])
    assert agent.run(PROMPT, images=[task_picture]) == "done"
    _, task, _, _, pictures, observation, *_ = strict_model.seen[1]
    assert task.content[1]["image"] is task_picture
    assert pictures.role == MessageRole.USER
    assert [element["image"] for element in pictures.content] == [screenshot]
    assert "recall(" in get_text(observation)
    assert agent.memory.steps[0].task_images == [task_picture]


def test_errors_are_results_and_no_words_of_the_user():
    """What smolagents answers to a step that failed is not quoted as a request of the user."""

    class ClumsyModel(StrictModel):
        def choose_answer(self, *, is_code):
            number = self.done
            text, calls = super().choose_answer(is_code=is_code)
            if number % 3 == 0 and number < 30:
                return "I forgot the code.", []
            return (
                (text.replace("read_log", "unknown_tool"), calls) if number % 3 == 1 and number < 30 else (text, calls)
            )

    strict_model = ClumsyModel()
    model = make_model(strict_model, window=14_000)
    agent = make_agent(CodeAgent, model)
    assert agent.run(PROMPT) == "done"
    assert strict_model.refusals == 0
    given_history = read_messages(agent.write_memory_to_messages())
    users = [group.message for group in given_history.groups if group.message.role == "user"]
    assert [message.text for message in users] == [f"New task:\n{PROMPT}"]
    extract = get_text(strict_model.seen[-1][1])
    assert RULE in extract
    assert "Now let's retry" not in extract.partition("## Next Steps")[0]


def test_structured_answers_live_past_the_window():
    """A ``CodeAgent`` that asks for JSON gets it."""
    strict_model = StrictModel()
    agent = make_agent(CodeAgent, make_model(strict_model), use_structured_outputs_internally=True)
    assert agent.run(PROMPT) == "done"
    assert strict_model.refusals == 0


def test_models_of_plain_text_get_one_text_a_message():
    """What is shown can be flattened, as models of plain text need it: nothing behind a first element is lost."""

    class PlainModel(StrictModel):
        def check_request(self, messages, tools):
            assert all(len(message.content) == 1 for message in messages)
            get_clean_message_list(messages, tool_role_conversions, flatten_messages_as_text=True)
            return super().check_request(messages, tools)

    for agent_class in AGENT_CLASSES:
        strict_model = PlainModel(window=12_000)
        assert make_agent(agent_class, make_model(strict_model, window=200_000)).run(PROMPT) == "done"
        assert strict_model.refusals


def test_it_is_the_wrapped_model_in_everything_else():
    """Attributes and methods are those of the wrapped model; one that cannot stream cannot be asked to; and a model
    that is wrapped twice is wrapped once.
    """
    plain = StrictModel(model_id="openai/o3", tool_name_key="tool", temperature=0.5)
    model = make_model(make_model(plain), window=20_000)
    assert model.wrapped_model is plain
    assert isinstance(model, Model)
    assert (model.model_id, model.tool_name_key, model.kwargs) == ("openai/o3", "tool", {"temperature": 0.5})
    assert not model.supports_stop_parameter
    assert model.to_dict() == plain.to_dict()
    answer = ChatMessage(MessageRole.ASSISTANT, '{"tool": "read_log", "arguments": {"step": 1}}')
    assert model.parse_tool_calls(answer).tool_calls[0].function.name == "read_log"
    assert not hasattr(model, "generate_stream")
    with pytest.raises(ValueError, match="generate_stream"):
        make_agent(CodeAgent, model, stream_outputs=True)
    with pytest.raises(AttributeError):
        model.nothing  # noqa: B018


def test_messages_may_be_dictionaries_and_texts():
    """What ``generate`` of smolagents takes beside its own messages reaches the model, whole or reduced."""
    seen = []

    class AnyModel(Model):
        def generate(self, messages, **_):
            seen.append(get_clean_message_list(messages, tool_role_conversions))
            assert estimate_text_tokens(str(seen[-1])) < 30_000
            return ChatMessage(MessageRole.ASSISTANT, "yes")

    model = make_model(AnyModel())
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    model(messages)
    assert seen[0] == get_clean_message_list(messages)
    for number in range(40):
        messages.append({"role": "assistant", "content": f"Answer {number}"})
        messages.append({"role": "user", "content": write_log(number)})
        model(messages)
    assert RULE in str(seen[-1])
    assert len(messages) == 82


def test_the_window_of_ollama_is_known_by_its_setting():
    """Ollama cuts what is longer than ``num_ctx`` off without an error."""
    strict_model = StrictModel(window=12_000, num_ctx=12_000, max_tokens=500)
    model = make_model(strict_model, window=None)
    assert make_agent(CodeAgent, model).run(PROMPT) == "done"
    assert model.get_history().report().window == 12_000
    assert strict_model.refusals == 0


def test_what_goes_wrong_in_holdfast_does_not_stop_the_agent(tmp_path, caplog):
    """With a store that cannot be opened, the agent goes on with its whole history, and one line of the log says so."""
    (tmp_path / "store.db").write_text("this is no database, and it is long enough to be looked at" * 100)
    strict_model = StrictModel(steps=3)
    agent = make_agent(CodeAgent, HoldfastModel(strict_model, store=tmp_path / "store.db"))
    assert agent.run(PROMPT) == "done"
    assert len(strict_model.seen[-1]) == 2 + 3 * 3
    lines = [record for record in caplog.records if record.name == "holdfast.integrations"]
    assert len(lines) == 1
    assert not lines[0].exc_info


TEXTS = st.text(max_size=20) | st.sampled_from(["Observation:\n", "Error:\nno", "Now proceed and carry out this plan."])
PICTURE = {"type": "image", "image": Image.new("RGB", (2, 2))}
CONTENTS = st.lists(TEXTS.map(lambda text: {"type": "text", "text": text}) | st.just(PICTURE), min_size=1, max_size=2)
CALL = "{{'id': '1', 'type': 'function', 'function': {{'name': 'f', 'arguments': {{'x': {}}}}}}}"
CALL_TEXTS = [f"Calling tools:\n[{CALL.format(1)}]", f"Calling tools:\n[{CALL.format(2)}, {CALL.format('nan')}]"]
CALL_CONTENTS = st.sampled_from(CALL_TEXTS).map(lambda text: [{"type": "text", "text": text}])
MESSAGES = st.builds(ChatMessage, st.sampled_from(list(MessageRole)), CONTENTS | CALL_CONTENTS)


SAME_ID_TWICE = 2 * [
    ChatMessage(MessageRole.TOOL_CALL, [{"type": "text", "text": CALL_TEXTS[0]}]),
    ChatMessage(MessageRole.TOOL_RESPONSE, [{"type": "text", "text": "Observation:\nyes"}]),
]


@given(messages=st.lists(MESSAGES, max_size=12))
@example(messages=SAME_ID_TWICE)
def test_any_messages_come_back_as_they_are(messages):
    """Whatever somebody puts into a memory: messages of which nothing is left out are the same objects in the same
    order, each result of ours stands after its call, and no two calls have one id.
    """
    given_history = read_messages(messages)
    shown = [ShownMessage(group.message, index) for index, group in enumerate(given_history.groups)]
    written = write_messages(given_history, shown)
    assert len(written) == len(messages)
    assert all(before is after for before, after in zip(messages, written, strict=True))
    call_ids, open_ids = [], []
    for group in given_history.groups:
        result_ids = [result.call_id for result in group.message.results]
        assert bool(result_ids) == (group.message.role == "tool")
        assert not result_ids or result_ids == open_ids
        open_ids = [call.id for call in group.message.calls]
        call_ids += open_ids
    assert len(call_ids) == len(set(call_ids))


def test_calls_and_results_are_read_from_the_texts_of_smolagents():
    """A step of an agent is an answer with its calls and a message with their results."""
    agent = make_agent(ToolCallingAgent, StrictModel(steps=1, calls_per_step=2))
    agent.run(PROMPT)
    assert isinstance(agent.memory.steps[0], TaskStep)
    task, answer, results, *_ = [group.message for group in read_messages(agent.write_memory_to_messages()).groups]
    assert task.role == "user"
    assert (answer.role, answer.text) == ("assistant", "I look.")
    assert [(call.id, call.name, json.loads(call.arguments)) for call in answer.calls] == [
        ("c0_0", "read_log", {"step": 0}),
        ("c0_1", "read_log", {"step": 0}),
    ]
    assert results.role == "tool"
    assert [result.call_id for result in results.results] == ["c0_0", "c0_1"]
    assert results.results[0].content[0].text == f"{write_log(0)}\n{write_log(0)}"


def test_the_example_runs(capsys):
    """The example finishes, and its model was shown a small part of what its agent said."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said, shown = re.findall(r"([\d,]{5,})", capsys.readouterr().out)[:2]
    assert int(shown.replace(",", "")) < int(said.replace(",", "")) / 3
