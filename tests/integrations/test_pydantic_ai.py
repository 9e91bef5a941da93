"""The capability in real Pydantic AI agents, with a model that refuses what a provider refuses."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed (pip install 'holdfast[pydantic-ai]')")

from pydantic import BaseModel, create_model
from pydantic_ai import (
    Agent,
    BinaryContent,
    CachePoint,
    ModelRetry,
    NativeOutput,
    PydanticAIDeprecationWarning,
    Tool,
    ToolReturn,
)
from pydantic_ai.capabilities import AbstractCapability, Capability, ModelFallback
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelContextWindowExceededError,
    ModelHTTPError,
)
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from holdfast.events import CompactionEnded
from holdfast.integrations.pydantic_ai import HoldfastCapability
from holdfast.integrations.pydantic_ai.capability import _choose_target
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import ScriptedAnswer

RULE = "Never restart the server."
EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "pydantic_ai_agent.py"
PROMPT = f"Find out why it is slow. {RULE}"
NO_LIMITS = UsageLimits(request_limit=None)
PIXEL = BinaryContent(b"\x89PNG\r\n\x1a\n" + bytes(40), media_type="image/png")


@pytest.fixture(autouse=True)
def _event_loop():
    """Close the loop that ``run_sync`` leaves open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


def write_log(step, lines=120):
    """Return what the tool prints."""
    return "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


def read_log(step: int) -> str:
    """Read the log of one step."""
    return write_log(step)


def describe(message):
    """Return what a provider is sent of a message: all but times, ids and counts that stay at home."""
    described = []
    for part in message.parts:
        if isinstance(part, ToolReturnPart):
            described.append(("result", part.tool_call_id, repr(part.content_items(mode="str"))))
        elif isinstance(part, ToolCallPart):
            described.append(("call", part.tool_call_id, part.tool_name, part.args_as_json_str()))
        elif part.part_kind != "instruction-baseline":
            described.append((part.part_kind, repr(getattr(part, "content", part))))
    return (message.kind, tuple(described))


class StrictModel:
    """A model that reads one log after the other, and refuses what its provider would refuse."""

    def __init__(self, steps=40, window=30_000, recalls=(), parallel=1, error=ModelContextWindowExceededError):
        self.steps, self.window, self.recalls, self.parallel = steps, window, dict(recalls), parallel
        self.error = error
        self.usage_factor = 1
        self.seen, self.views, self.tool_names = [], [], []
        self.refusals = self.done = 0
        self.model = FunctionModel(self.answer, stream_function=self.stream, model_name="strict")

    def answer(self, messages, info):
        """Return the next call, or the end."""
        views = [describe(message) for message in messages]
        tokens = estimate_text_tokens(repr(views) + (info.instructions or ""))
        if tokens > self.window:
            self.refusals += 1
            raise self.error("strict", f"prompt is too long: {tokens} tokens > {self.window} maximum")
        check_pairs(messages)
        self.seen.append(list(messages))
        self.views.append(views)
        self.tool_names.append([tool.name for tool in info.function_tools])
        step, self.done = self.done, self.done + 1
        usage = RequestUsage(input_tokens=int(tokens * self.usage_factor), output_tokens=10)
        if step >= self.steps:
            return ModelResponse([TextPart("done")], usage=usage)
        if step in self.recalls:
            return ModelResponse([ToolCallPart("recall", self.recalls[step], f"c{step}")], usage=usage)
        numbers = [step * self.parallel + number for number in range(self.parallel)]
        calls = [ToolCallPart("read_log", {"step": number}, f"c{number}") for number in numbers]
        return ModelResponse([TextPart("I look."), *calls], usage=usage)

    async def stream(self, messages, info):
        """Return the same in pieces; ``run_stream`` takes the first text for the end, so calls come without one."""
        parts = self.answer(messages, info).parts
        calls = [part for part in parts if isinstance(part, ToolCallPart)]
        for index, call in enumerate(calls):
            yield {index: DeltaToolCall(call.tool_name, call.args_as_json_str(), tool_call_id=call.tool_call_id)}
        if not calls:
            yield parts[0].content


def check_pairs(messages):
    """Fail as a provider does where a result does not stand right after its call."""
    due = set()
    for message in messages:
        if isinstance(message, ModelRequest):
            answered = [part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)]
            assert len(answered) == len(set(answered))
            assert set(answered) == due, "calls and results do not match"
            due = set()
        else:
            assert not due
            due = {part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)}
    assert not due


def make_agent(strict, *more, window=30_000, store=None, **options):
    """Return an agent with the capability."""
    capability = HoldfastCapability(window=window, store=store or MemoryStore(), **options)
    return Agent(strict.model, tools=[read_log, *more], capabilities=[capability])


def run_in(way, agent, prompt=PROMPT, **options):
    """Run ``agent`` in one of the ways that Pydantic AI has, and return its messages."""
    options = {"usage_limits": NO_LIMITS, **options}
    if way == "sync":
        return agent.run_sync(prompt, **options).all_messages()

    async def run():
        # Entering the agent closes the connections of its model in the end.
        async with agent:
            return (await agent.run(prompt, **options)).all_messages()

    async def stream():
        async with agent, agent.run_stream(prompt, **options) as result:
            assert [text async for text in result.stream_text()][-1] == "done"
            return result.all_messages()

    return asyncio.run(run() if way == "async" else stream())


def list_results(messages, name="read_log"):
    """Return the contents of the results of one tool."""
    parts = [part for message in messages for part in message.parts]
    return [part.content for part in parts if isinstance(part, ToolReturnPart) and part.tool_name == name]


@pytest.mark.parametrize("way", ["sync", "async", "stream"])
def test_agent_lives_past_its_window(way):
    """An agent that reads three windows of logs finishes; its history stays whole; no request is refused; and each
    request begins as the one before it did, but for compactions.
    """
    strict, events = StrictModel(), []
    messages = run_in(way, make_agent(strict, listener=events.append))
    assert messages[-1].parts[-1].content == "done"
    assert list_results(messages) == [write_log(step) for step in range(40)]
    compactions = [event for event in events if isinstance(event, CompactionEnded)]
    assert strict.refusals == 0
    assert len(compactions) >= 2
    breaks = 0
    for before, after in zip(strict.views, strict.views[1:], strict=False):
        breaks += after[: len(before)] != before
        assert RULE in repr(after[0])
    assert breaks == len(compactions)


def test_agent_without_the_capability_dies_of_the_overflow():
    """The same agent alone is refused."""
    strict = StrictModel()
    with pytest.raises(ModelContextWindowExceededError):
        run_in("sync", Agent(strict.model, tools=[read_log]))


def test_parallel_calls_keep_their_results():
    """Three calls in each answer: the results go with them past the window."""
    strict = StrictModel(steps=15, parallel=3)
    messages = run_in("sync", make_agent(strict))
    assert strict.refusals == 0
    assert list_results(messages) == [write_log(step) for step in range(45)]


def make_http_error(model_name, text):
    """Return an overflow that only its text tells."""
    return ModelHTTPError(500, model_name, {"error": {"message": text}})


@pytest.mark.parametrize("way", ["sync", "stream"])
@pytest.mark.parametrize("error", [ModelContextWindowExceededError, make_http_error])
def test_overflow_is_recovered_inside_of_the_request(way, error):
    """A window smaller than anybody knew: the refused request is made again with less, and the run never sees it."""
    strict = StrictModel(window=12_000, error=error)
    messages = run_in(way, make_agent(strict, window=200_000))
    assert messages[-1].parts[-1].content == "done"
    assert 1 <= strict.refusals <= 3
    assert list_results(messages) == [write_log(step) for step in range(40)]


def test_overflow_of_all_models_of_a_fallback_is_recovered():
    """``FallbackModel`` raises a group of errors: that its models overflowed is found in there."""
    first, second = StrictModel(window=12_000), StrictModel(window=12_000)
    second.seen = first.seen
    agent = Agent(
        FallbackModel(first.model, second.model),
        tools=[read_log],
        capabilities=[HoldfastCapability(window=200_000, store=MemoryStore())],
    )
    assert run_in("sync", agent)[-1].parts[-1].content == "done"
    assert first.refusals >= 1


def test_overflow_of_the_last_model_to_fall_back_on_is_recovered():
    """``ModelFallback`` takes a refused request to the next model. The last one's is made again with less there."""
    first, second = StrictModel(steps=20, window=9_000), StrictModel(steps=20, window=12_000)

    def answer_second(messages, info):
        second.done = first.done
        response = second.answer(messages, info)
        first.done = second.done
        return response

    fallback = ModelFallback(FunctionModel(answer_second, model_name="second"))
    holdfast = HoldfastCapability(window=200_000, store=MemoryStore())
    agent = Agent(first.model, tools=[read_log], capabilities=[fallback, holdfast])
    assert run_in("sync", agent)[-1].parts[-1].content == "done"
    assert [first.refusals >= 1, second.refusals >= 1] == [True, True]


def test_a_model_that_fails_after_an_overflow_of_another_is_asked_once():
    """The group of ``ModelFallback`` has the overflow of a model that was tried earlier: no reason to ask the last one,
    which failed otherwise, again.
    """
    requests = []

    def fail(_messages, _info):
        requests.append(1)
        raise ModelHTTPError(503, "second", {"error": {"message": "overloaded"}})

    fallback = ModelFallback(FunctionModel(fail, model_name="second"))
    holdfast = HoldfastCapability(window=200_000, store=MemoryStore())
    agent = Agent(StrictModel(window=12_000).model, tools=[read_log], capabilities=[fallback, holdfast])
    with pytest.raises(FallbackExceptionGroup):
        run_in("sync", agent)
    assert len(requests) == 1


def test_models_inside_of_others_are_known():
    """Models that only wrap others, and the candidates of a ``FallbackModel`` in them, are taken for what they are:
    their API, and the answer that their own settings ask for.
    """
    small = make_anthropic("http://localhost")
    large = make_openai_responses("http://localhost")
    targets = [
        _choose_target(model, None, None) for model in (WrapperModel(large), WrapperModel(FallbackModel(large, small)))
    ]
    assert [target.api for target in targets] == ["openai-responses", "anthropic"]
    assert targets[1].limits.requested_output == 2_000
    assert _choose_target(small, None, {"max_tokens": 500}).limits.requested_output == 500


@pytest.mark.parametrize("is_group", [False, True])
def test_another_error_is_the_agents(is_group):
    """An error that is no overflow reaches the caller as it is, after one request."""
    requests = []

    def fail(_messages, _info):
        requests.append(1)
        raise ModelHTTPError(401, "strict", {"error": {"message": "the key is wrong"}})

    model = FallbackModel(FunctionModel(fail)) if is_group else FunctionModel(fail)
    agent = Agent(model, capabilities=[HoldfastCapability(store=MemoryStore())])
    with pytest.raises(FallbackExceptionGroup if is_group else ModelHTTPError):
        agent.run_sync("Hello")
    assert len(requests) == 1


def test_a_large_result_is_a_preview_and_recall_reads_it_back():
    """A result of 2 MB fits a window of 30,000 tokens; the tool finds lines in it and in what an extract left out."""
    strict = StrictModel(recalls={35: {"search": "step 003, line 77"}, 36: {"search": "line 39999 of the dump"}})

    def read_dump() -> str:
        """Read the dump."""
        return "\n".join(f"line {line} of the dump" for line in range(80_000))

    original = strict.answer

    def answer(messages, info):
        response = original(messages, info)
        if strict.done == 3:
            return ModelResponse([ToolCallPart("read_dump", {}, "dump")])
        return response

    strict.model = FunctionModel(answer, model_name="strict")
    capability = HoldfastCapability(window=30_000, store=MemoryStore())
    messages = run_in("sync", Agent(strict.model, tools=[read_log, read_dump], capabilities=[capability]))
    assert strict.refusals == 0
    assert len(list_results(messages, "read_dump")[0]) > 1_500_000
    early, dump = list_results(messages, "recall")
    assert "step 003" in early
    handle = re.search(r'recall\(id="([0-9a-f]+)"', dump)[1]
    found = capability.get_history(messages).answer_recall({"id": handle, "search": "line 39999 "})
    assert "line 39999 of the dump" in found
    assert all("recall" in names for names in strict.tool_names)


def test_decisions_survive_a_restart():
    """A new agent on the stored history and the same store shows what was shown before, so the prompt cache holds."""
    store, views = MemoryStore(), []
    history = None
    for prompt in (PROMPT, "And now?"):
        strict = StrictModel(steps=25)
        messages = run_in("sync", make_agent(strict, store=store), prompt, message_history=history)
        history = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
        views.append(strict.views)
    before, after = views[0][-1], views[1][0]
    assert "And now?" in repr(after[-1])
    assert is_extract(strict.seen[0][0].parts[0].content)
    assert after[: len(before)] == before
    assert len(store.list_sessions()) == 1


def test_conversations_do_not_mix():
    """Two conversations with the same prompt are two sessions, one capability or not."""
    store = MemoryStore()
    agent = make_agent(StrictModel(steps=2), store=store)
    for name in ("one", "two"):
        run_in("sync", agent, conversation_id=name)
    assert len(store.list_sessions()) == 2


def test_runs_at_the_same_time_do_not_mix():
    """Three conversations of one agent that overflow at the same time all finish, with their own results."""
    stricts = [StrictModel(steps=20, window=12_000) for _ in range(3)]
    agent = make_agent(stricts[0], window=200_000)

    async def run_all():
        return await asyncio.gather(
            *[agent.run(f"{PROMPT} {number}", model=strict.model, usage_limits=NO_LIMITS)
              for number, strict in enumerate(stricts)]
        )  # fmt: skip

    for number, result in enumerate(asyncio.run(run_all())):
        assert list_results(result.all_messages()) == [write_log(step) for step in range(20)]
        assert all(f"{PROMPT} {number}" in repr(views) for views in stricts[number].views)


def test_runs_from_one_history_do_not_mix():
    """Three runs that go on from one history are one conversation at first. All are refused at the same time, and each
    is made again with its own question.
    """
    history = run_in("async", make_agent(StrictModel(steps=8, window=200_000), window=200_000))
    stricts = [StrictModel(steps=20, window=12_000) for _ in range(3)]
    agent = make_agent(stricts[0], window=200_000)

    async def run_all():
        runs = [
            agent.run(f"Question {number}", model=strict.model, message_history=history, usage_limits=NO_LIMITS)
            for number, strict in enumerate(stricts)
        ]
        return await asyncio.gather(*runs)

    for number, result in enumerate(asyncio.run(run_all())):
        strict = stricts[number]
        assert strict.refusals >= 1
        assert result.output == "done"
        asked = [set(re.findall(r"Question \d", repr(views))) for views in strict.views]
        assert asked == [{f"Question {number}"}] * len(asked)


def test_sub_agents_and_hand_offs_are_conversations_of_their_own():
    """An agent called by a tool, also under the id of its parent, has its own session; the caller's goes on."""
    store = MemoryStore()
    inner_strict, strict = StrictModel(steps=20), StrictModel(steps=3)
    inner = make_agent(inner_strict, store=store)

    async def ask_other(ctx) -> str:
        """Ask the other agent."""
        result = await inner.run("Read all logs.", usage_limits=NO_LIMITS, conversation_id=ctx.conversation_id)
        return result.output

    agent = make_agent(strict, store=store)
    agent.tool(ask_other)
    original = strict.answer

    def answer(messages, info):
        response = original(messages, info)
        return ModelResponse([ToolCallPart("ask_other", {}, "other")]) if strict.done == 2 else response

    strict.model = FunctionModel(answer)
    messages = run_in("sync", agent, model=strict.model)
    assert list_results(messages, "ask_other") == ["done"]
    assert inner_strict.refusals == strict.refusals == 0
    assert len(store.list_sessions()) == 2


def test_content_that_is_not_text_stays_as_it_is():
    """Pictures, cache points, thinking and provider parts of messages with shortened texts go to the model as Pydantic
    AI has them; files of a tool result too.
    """

    def take_picture() -> ToolReturn:
        """Take a picture."""
        return ToolReturn(return_value=["x " * 60_000, PIXEL, {"size": 1}])

    parts = [
        ThinkingPart("Hm.", signature="c2ln", provider_name="anthropic"),
        NativeToolCallPart("web_search", {"query": "a"}, "n1", provider_name="anthropic"),
        NativeToolReturnPart("web_search", {"found": 1}, "n1", provider_name="anthropic"),
        NativeToolCallPart("web_search", {"query": "b"}, "n2", provider_name="anthropic"),
        NativeToolReturnPart("web_search", {"found": 2}, "n2", provider_name="anthropic"),
        TextPart("I look."),
        ToolCallPart("take_picture", {}, "p"),
    ]
    seen = []

    def answer(messages, _info):
        seen.append(messages)
        return ModelResponse(list(parts) if len(seen) == 1 else [TextPart("done")])

    agent = Agent(
        FunctionModel(answer),
        tools=[take_picture],
        capabilities=[HoldfastCapability(window=200_000, store=MemoryStore())],
    )
    prompt = ["Look closely. " * 40_000, PIXEL, CachePoint(), "What is this?"]
    result = agent.run_sync(prompt)
    first, answer_message, second = seen[1]
    text, *rest = first.parts[0].content
    assert len(text) < len(prompt[0]) / 2
    assert rest == prompt[1:]
    assert list(answer_message.parts) == parts
    preview, picture = second.parts[0].content
    assert len(preview) < 60_000
    assert picture == PIXEL
    assert result.all_messages()[2].parts[0].content == ["x " * 60_000, PIXEL, {"size": 1}]


def test_parts_that_look_alike_stay_in_their_order():
    """Two pictures with one name and of one size, beside a text that is shortened, are shown each in its place."""
    pictures = [BinaryContent(bytes([number]) * 48, media_type="image/png", identifier="scan") for number in (1, 2)]
    seen = []

    def answer(messages, _info):
        seen.append(messages)
        return ModelResponse([ToolCallPart("scan", {}, "s") if len(seen) == 1 else TextPart("done")])

    agent = Agent(FunctionModel(answer), capabilities=[HoldfastCapability(window=200_000, store=MemoryStore())])
    agent.tool_plain(lambda: [pictures[0], "x " * 60_000, pictures[1]], name="scan")
    agent.run_sync([pictures[0], "Look closely. " * 40_000, pictures[1]])
    for content in (seen[1][0].parts[0].content, seen[1][2].parts[0].content):
        assert [item.data for item in content if item in pictures] == [picture.data for picture in pictures]
        assert [item[:22] for item in content if isinstance(item, str)] == ["<persisted_tool_result"]


class Cause(BaseModel):
    cause: str


def test_structured_output_retries_and_instructions_survive():
    """Output tools, calls that must be made again, instructions and the system prompt work past the window."""
    strict = StrictModel(steps=30)
    failed = []

    def read_log_sometimes(step: int) -> str:
        """Read a log, but not at once."""
        if step % 10 == 5 and step not in failed:
            failed.append(step)
            raise ModelRetry("the log is locked")
        return write_log(step)

    original = strict.answer

    def answer(messages, info):
        response = original(messages, info)
        assert info.instructions == "Be brief."
        assert messages[0].parts[0].content == "You are a detective."
        if response.parts[-1].part_kind == "text":
            return ModelResponse([ToolCallPart(info.output_tools[0].name, {"cause": "disk"}, "out")])
        return response

    agent = Agent(
        FunctionModel(answer, model_name="strict"),
        output_type=Cause,
        system_prompt="You are a detective.",
        instructions="Be brief.",
        capabilities=[HoldfastCapability(window=30_000, store=MemoryStore())],
    )
    agent.tool_plain(read_log_sometimes, name="read_log", retries=3)
    result = agent.run_sync(PROMPT, usage_limits=NO_LIMITS)
    assert result.output == Cause(cause="disk")
    assert strict.refusals == 0
    assert failed == [5, 15, 25]
    assert is_extract(strict.seen[-1][0].parts[1].content)
    assert all(isinstance(view[0].parts[0], SystemPromptPart) for view in strict.seen)


def test_instructions_that_change_survive_a_compaction():
    """Pydantic AI keeps changes of ``on_change="append"`` instructions in old messages: they are still in the view."""
    strict = StrictModel(steps=40)
    agent = make_agent(strict)

    @agent.instructions
    def tell_mode(ctx):
        mode = {1: "quick", 2: "loud"}.get(ctx.run_step, "careful")
        return InstructionPart(content=f"Work in {mode} mode.", name="mode", on_change="append")

    run_in("sync", agent)
    assert is_extract(strict.seen[-1][0].parts[-1].content)
    shown = repr(strict.seen[-1])
    assert "careful" in shown
    assert "loud" not in shown
    assert strict.refusals == 0


def test_system_prompts_that_change_survive_a_compaction():
    """The change of an ``on_change="append"`` system prompt is in an old request: its last value is still in the system
    prompt of the view, after the first. A prompt for one request is not repeated by an extract.
    """
    strict = StrictModel(steps=4)
    agent = make_agent(strict)
    modes = ["careful", "loud", "quick"]

    @agent.system_prompt(dynamic=True, on_change="append")
    def tell_mode():
        return f"Work in {modes[0]} mode."

    history = None
    for turn in range(15):
        strict.done = 0
        budget = SystemPromptPart(f"Budget: {turn} requests.", scope="request")
        past = None if history is None else [*history, ModelRequest([budget])]
        history = run_in("sync", agent, message_history=past)
        modes = modes[1:] or modes
    shown = strict.seen[-5]
    assert is_extract(shown[0].parts[2].content)
    stated = [part.content for part in shown[0].parts if isinstance(part, SystemPromptPart)]
    assert ["careful" in stated[0], "quick" in stated[-1], len(stated)] == [True, True, 2]
    assert [turn for turn in range(14) if f"Budget: {turn} " in repr(shown)] == []
    assert "Budget: 14 " in repr(shown)
    assert strict.refusals == 0


def test_a_request_with_a_preview_has_each_record_once():
    """What Pydantic AI records in a request is no words of the user: it stays where it is, once."""
    seen = []

    def answer(messages, _info):
        seen.append(messages)
        return ModelResponse([ToolCallPart("dump", {}, "c") if len(seen) == 1 else TextPart("done")])

    agent = Agent(FunctionModel(answer), capabilities=[HoldfastCapability(window=200_000, store=MemoryStore())])
    agent.tool_plain(lambda: "x " * 60_000, name="dump")

    @agent.instructions
    def tell_step(ctx):
        return InstructionPart(content=f"This is step {ctx.run_step}.", name="step", on_change="append")

    agent.run_sync(PROMPT)
    assert len(seen[1][-1].parts[0].content) < 60_000
    # The change of the instruction, as this model is told of it.
    (change,) = seen[1][-1].parts[1:]
    assert "This is step 2." in change.content


def rare_tool() -> str:
    """Do something rare."""
    return "rare"


@pytest.mark.parametrize("way", ["search", "load"])
def test_tools_that_the_model_has_found_stay(way):
    """A tool found by a search, and a capability loaded on demand with its instructions, are there after a compaction,
    though the exchange that brought them is not shown any more.
    """
    strict = StrictModel(steps=30)
    calls = {"search": ("search_tools", {"queries": ["rare"]}), "load": ("load_capability", {"id": "extra"})}
    original = strict.answer

    def answer(messages, info):
        response = original(messages, info)
        return ModelResponse([ToolCallPart(*calls[way], "found")]) if strict.done == 2 else response

    strict.model = FunctionModel(answer)
    more = [Capability(id="extra", description="Extra.", instructions="Obey.", tools=[rare_tool], defer_loading=True)]
    holdfast = HoldfastCapability(window=30_000, store=MemoryStore())
    agent = Agent(
        strict.model,
        tools=[read_log, *([Tool(rare_tool, defer_loading=True)] if way == "search" else [])],
        capabilities=[holdfast, *(more if way == "load" else [])],
    )
    run_in("sync", agent)
    assert strict.refusals == 0
    assert is_extract(strict.seen[-1][0].parts[-1].content)
    assert ["rare_tool" in names for names in strict.tool_names] == [False] * 2 + [True] * 29
    assert ("Obey." in repr(strict.seen[-1])) == (way == "load")


def make_described_tool(name, words):
    """Return a tool that its description makes large."""
    return Tool(rare_tool, name=name, description="It does something. " * words)


def test_tools_that_are_not_shown_take_no_room():
    """Hundreds of tools that the model would have to search for are not counted: the conversation has its window."""
    hidden_tools = [make_described_tool(f"rare_{number}", 30) for number in range(400)]
    for tool in hidden_tools:
        tool.defer_loading = True
    strict = StrictModel()
    capability = HoldfastCapability(window=30_000, store=MemoryStore())
    messages = run_in("sync", Agent(strict.model, tools=[read_log, *hidden_tools], capabilities=[capability]))
    assert strict.refusals == 0
    assert capability.get_history(messages).report().setup_tokens < 1_000


def test_tools_of_one_name_are_counted_for_each_agent():
    """One capability on two agents: that the other has a small tool of the same name does not hide a large one."""
    capability = HoldfastCapability(window=30_000, store=MemoryStore())
    setup_tokens = []
    for words in (1, 1_000):
        tool = make_described_tool("look", words)
        messages = run_in("sync", Agent(StrictModel(steps=0).model, tools=[tool], capabilities=[capability]))
        setup_tokens.append(capability.get_history(messages).report().setup_tokens)
    assert setup_tokens[1] > setup_tokens[0] + 2_000


def test_the_schema_of_a_native_output_is_counted():
    """A schema that goes with the request as its output format takes room like that of a tool."""
    fields = {f"field_{number}": (str, ...) for number in range(200)}
    setup_tokens = []
    for output_type in (str, NativeOutput(create_model("Wide", **fields))):
        values = json.dumps(dict.fromkeys(fields, "x"))
        model = FunctionModel(lambda _messages, _info, values=values: ModelResponse([TextPart(values)]))
        capability = HoldfastCapability(window=30_000, store=MemoryStore())
        messages = run_in("sync", Agent(model, output_type=output_type, capabilities=[capability]))
        setup_tokens.append(capability.get_history(messages).report().setup_tokens)
    assert setup_tokens[1] > setup_tokens[0] + 2_000


def test_usage_of_answers_is_passed_on():
    """The report of the history knows what the provider counted, here half as much again as we estimate."""
    tokens_by_factor = {}
    for factor in (1, 1.5):
        strict = StrictModel(steps=3)
        strict.usage_factor = factor
        capability = HoldfastCapability(window=30_000, store=MemoryStore())
        messages = run_in("sync", Agent(strict.model, tools=[read_log], capabilities=[capability]))
        report = capability.get_history(messages).report()
        assert (report.window, report.message_count) == (30_000, 7)
        tokens_by_factor[factor] = report.tokens
    assert tokens_by_factor[1.5] > 1.2 * tokens_by_factor[1]


def test_an_overflow_in_unknown_words_is_recovered():
    """The class of the error says that it is an overflow, whatever its words are."""
    strict = StrictModel(window=12_000, error=lambda name, _: ModelContextWindowExceededError(name, "no"))
    messages = run_in("sync", make_agent(strict, window=200_000))
    assert messages[-1].parts[-1].content == "done"


def test_a_store_that_cannot_be_opened_does_not_stop_the_agent(tmp_path, caplog):
    """The run goes on with its whole history, and one line of the log says why."""
    (tmp_path / "store.db").write_text("this is no database, and it is long enough to be looked at" * 100)
    agent = make_agent(StrictModel(steps=3), store=tmp_path / "store.db")
    assert run_in("sync", agent)[-1].parts[-1].content == "done"
    records = [record for record in caplog.records if record.name == "holdfast.integrations"]
    assert [record.levelno for record in records] == [logging.WARNING]


class EditsHistory(AbstractCapability):
    """Somebody else's capability that changes what is sent in each request."""

    async def before_model_request(self, ctx, request_context):
        """Rewrite the first result and drop the answer's text."""
        messages = list(request_context.messages)
        if len(messages) > 4 and ctx.run_step % 3 == 0:
            messages[2] = ModelRequest([ToolReturnPart("read_log", "was not interesting", "c0")])
        request_context.messages = messages
        return request_context


def test_a_history_that_somebody_edits_between_requests_is_followed():
    """What another capability has changed is what is shown, in either order of the two, and nothing breaks."""
    for is_first in (True, False):
        strict = StrictModel(steps=30)
        capabilities = [EditsHistory(), HoldfastCapability(window=30_000, store=MemoryStore())]
        agent = Agent(
            strict.model, tools=[read_log], capabilities=capabilities if is_first else list(reversed(capabilities))
        )
        messages = run_in("sync", agent)
        assert strict.refusals == 0
        assert "was not interesting" in repr(strict.seen[5])
        assert list_results(messages) == [write_log(step) for step in range(30)]


def test_two_capabilities_on_one_agent_are_one():
    """The second replaces the first: there is one tool and one session."""
    stores = MemoryStore(), MemoryStore()
    strict = StrictModel(steps=2)
    agent = Agent(strict.model, tools=[read_log], capabilities=[HoldfastCapability(store=store) for store in stores])
    run_in("sync", agent)
    assert [len(store.list_sessions()) for store in stores] == [0, 1]
    assert strict.tool_names[0].count("recall") == 1


def test_an_agents_own_tool_recall_stays(caplog):
    """Pydantic AI ends a run with two tools of one name: the agent's stays, and one line of the log says so."""
    strict = StrictModel(recalls={1: {"topic": "disks"}})
    agent = make_agent(strict)

    @agent.tool_plain
    def recall(topic: str) -> str:
        return f"I remember {topic}."

    for _ in range(2):
        strict.done = 0
        messages = run_in("sync", agent)
        assert list_results(messages, "recall") == ["I remember disks."]
    assert strict.refusals == 0
    records = [record.message for record in caplog.records if record.name == "holdfast.integrations"]
    assert len(records) == 1
    assert "a tool of its own called recall" in records[0]


class ForgetfulStore(MemoryStore):
    """A store that fails with something that is no error of ours when a text is looked for."""

    def search_session(self, *_args, **_kwargs):
        raise OSError(5, "Input/output error")


def test_a_recall_that_fails_does_not_stop_the_agent(caplog):
    """Whatever goes wrong while a text is read back, the model gets an answer, and the run goes on."""
    strict = StrictModel(steps=5, recalls={3: {"search": "step 001"}})
    messages = run_in("sync", make_agent(strict, store=ForgetfulStore()))
    assert messages[-1].parts[-1].content == "done"
    assert list_results(messages, "recall") == ["The text could not be read back. Go on without it."]
    assert "Input/output error" in caplog.text


def test_an_agent_without_a_prompt_runs():
    """A run with nothing but instructions sends a request without parts, which is the first of every view."""
    strict = StrictModel(steps=2)
    agent = make_agent(strict)
    agent.instructions(lambda: "Read the logs.")
    assert run_in("sync", agent, None)[-1].parts[-1].content == "done"
    assert [view[0].kind for view in strict.seen] == ["request"] * 3


def test_old_retry_prompts_are_read():
    """A part that older versions of Pydantic AI wrote for a call that failed is its result, past the window too."""
    history = [ModelRequest([UserPromptPart(PROMPT)])]
    for step in range(40):
        with pytest.warns(PydanticAIDeprecationWarning, match="RetryPromptPart"):
            retry = RetryPromptPart(write_log(step), tool_name="read_log", tool_call_id=f"r{step}")
        history += [ModelResponse([ToolCallPart("read_log", {"step": step}, f"r{step}")]), ModelRequest([retry])]
    history.append(ModelResponse([TextPart("I give up.")]))
    strict = StrictModel(steps=0)
    run_in("sync", make_agent(strict), "Go on.", message_history=history)
    assert strict.refusals == 0
    assert "step 039" in repr(strict.seen[0])
    assert "step 003, line 77" not in repr(strict.seen[0])


def make_anthropic(url, name="claude-haiku-4-5", **thinking):
    """Return the real model of Pydantic AI for Anthropic's API, with thinking."""
    pytest.importorskip("anthropic", reason="the SDK of Anthropic is not installed")
    from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
    from pydantic_ai.providers.anthropic import AnthropicProvider

    thinking = thinking or {"type": "enabled", "budget_tokens": 1_024}
    settings = AnthropicModelSettings(max_tokens=2_000, anthropic_thinking=thinking, anthropic_cache_messages=True)
    provider = AnthropicProvider(base_url=url, api_key="any")
    return AnthropicModel(name, provider=provider, settings=settings)


def make_anthropic_that_binds(url):
    """Return the same for a model that signs its thinking over everything before it."""
    return make_anthropic(url, "claude-opus-5-5", type="adaptive")


def make_openai_chat(url):
    """Return the real model of Pydantic AI for Chat Completions."""
    pytest.importorskip("openai", reason="the SDK of OpenAI is not installed")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("gpt-4.1", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="any"))


def make_openai_responses(url):
    """Return the real model of Pydantic AI for Responses."""
    pytest.importorskip("openai", reason="the SDK of OpenAI is not installed")
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="any"))


WIRE_SCRIPT = [
    *[ScriptedAnswer("", (("read_log", {"step": step}),), "Let me see.") for step in range(30)],
    ScriptedAnswer("", (("recall", {"search": "step 003, line 77"}), ("read_log", {"step": 31})), "Once more."),
    ScriptedAnswer("done", thinking="So."),
]


@pytest.mark.parametrize("way", ["async", "stream"])
@pytest.mark.parametrize(
    "make_model", [make_anthropic, make_anthropic_that_binds, make_openai_chat, make_openai_responses]
)
def test_real_models_are_never_refused_and_keep_their_cache(strict_provider, make_model, way):
    """Pydantic AI's own models and the SDKs on the wire: a provider that refuses edited thinking, broken pairs and too
    long requests refuses nothing, and most of each request is read from its cache.
    """
    served = strict_provider(window=32_000, script=WIRE_SCRIPT)
    capability = HoldfastCapability(window=32_000, store=MemoryStore())
    agent = Agent(make_model(served.url), tools=[read_log], instructions="Be brief.", capabilities=[capability])
    messages = run_in(way, agent)
    requests = served.provider.requests
    assert [request.rule for request in requests if not request.tokens] == []
    assert len(requests) == len(WIRE_SCRIPT)
    assert len(list_results(messages)) == 31
    assert "step 003" in list_results(messages, "recall")[0]
    cached_share = sum(request.cached for request in requests) / sum(request.tokens for request in requests)
    assert cached_share > 0.7, cached_share


@pytest.mark.parametrize("way", ["async", "stream"])
@pytest.mark.parametrize("make_model", [make_anthropic, make_openai_chat, make_openai_responses])
def test_real_overflows_are_recovered(strict_provider, make_model, way):
    """The wording of a real provider, through the SDK and Pydantic AI's error classes, is taken for an overflow."""
    served = strict_provider(window=20_000, script=WIRE_SCRIPT)
    capability = HoldfastCapability(window=200_000, store=MemoryStore())
    agent = Agent(make_model(served.url), tools=[read_log], capabilities=[capability])
    messages = run_in(way, agent)
    assert len(list_results(messages)) == 31
    refused_count = len(served.provider.requests) - len(WIRE_SCRIPT)
    assert 1 <= refused_count <= 4


def test_example_compacts_and_finishes(capsys):
    """The agent reads logs of many times the window, compacts on the way, is never refused, and finds an old line."""
    pytest.importorskip("anthropic", reason="the SDK of Anthropic is not installed")
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    *compactions, answer, history, sizes = capsys.readouterr().out.splitlines()
    assert len(compactions) > 3
    assert all(line.startswith("compacted: ") for line in compactions)
    assert answer == "In night 3 the cache was cold."
    assert history == "the history has 84 messages, and is whole"
    assert sizes.startswith("42 requests, the largest ")


def test_our_spans_are_below_those_of_the_agent():
    """In an instrumented agent each planning is a span below the request to the model, or the run, that it is for; with
    its compactions below it.
    """
    pytest.importorskip(
        "opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')"
    )
    from pydantic_ai.capabilities import Instrumentation
    from pydantic_ai.models.instrumented import InstrumentationSettings
    from telemetry_recording import Recording

    recording = Recording()
    capability = HoldfastCapability(window=30_000, store=MemoryStore())
    capability._histories._telemetry = recording.telemetry
    instrumentation = Instrumentation(InstrumentationSettings(tracer_provider=recording.tracer_provider))
    strict = StrictModel()
    agent = Agent(strict.model, tools=[read_log], capabilities=[instrumentation, capability])
    run_in("async", agent)
    spans = {span.context.span_id: span for span in recording.spans}
    plannings = recording.find_spans("holdfast.plan")
    assert len(plannings) == len(strict.seen)
    for planning in plannings:
        assert spans[planning.parent.span_id].name.startswith(("chat", "agent run", "invoke_agent"))
    compactions = recording.find_spans("holdfast.compact")
    assert compactions
    assert {spans[span.parent.span_id].name for span in compactions} == {"holdfast.plan"}
    assert len({span.context.trace_id for span in recording.spans}) == 1
