"""The run configuration in real runs of the OpenAI Agents SDK, with a model that refuses what a provider refuses."""

from __future__ import annotations

import asyncio
import copy
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed (pip install 'holdfast[openai-agents]')")

import itertools

import httpx2
import msgspec
from agents import (
    Agent,
    Model,
    ModelProvider,
    ModelRetrySettings,
    ModelSettings,
    MultiProvider,
    OpenAIConversationsSession,
    OpenAIProvider,
    ResponsesWebSocketSession,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    retry_policies,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.exceptions import UserError
from agents.extensions import ToolOutputTrimmer
from agents.items import ModelResponse
from agents.run_config import ModelInputData
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tracing import TracingProcessor
from agents.usage import Usage
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, InternalServerError
from openai.types.responses import ResponseErrorEvent, ResponseReasoningItem
from openai.types.responses.response_usage import InputTokensDetails
from pydantic import BaseModel

from holdfast.errors import FormatError
from holdfast.events import CompactionEnded
from holdfast.integrations.openai_agents import HoldfastRuns
from holdfast.integrations.openai_agents.items import group_items
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.state.entries import AnswerEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import RefusalReply, ScriptedAnswer

RULE = "Never restart the server."
PROMPT = f"Find out why it is slow. {RULE}"
WAYS_TO_RUN = ("run", "run_sync", "run_streamed")

set_tracing_disabled(True)


def write_log(step, lines=120):
    """Return what the tool prints."""
    return "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


@function_tool
def read_log(step: int) -> str:
    """Read the log of one step."""
    return write_log(step)


class StrictModel(Model):
    """A model that reads one log after the other, and refuses what its provider would refuse.

    ``answers`` has the items to answer with in place of a step. The SDK's own ``ScriptedModel`` makes the streams.
    """

    def __init__(self, steps=40, window=30_000, answers=None, first_step=0, pause=0.0):
        self.steps = steps
        self.window = window
        self.answers = dict(answers or {})
        self.done = first_step
        self.pause = pause
        self.seen: list[list[Any]] = []
        self.tools: list[list[str]] = []
        self.refusals = 0

    async def get_response(self, system_instructions, input, model_settings, tools, *rest, **options):  # noqa: A002
        """Answer as the script says."""
        await asyncio.sleep(self.pause)
        items, tokens = self._check(system_instructions, input)
        script = ScriptedModel([self._answer(tokens)])
        response = await script.get_response(system_instructions, items, model_settings, tools, *rest, **options)
        self.tools.append([tool.name for tool in tools])
        return response

    async def stream_response(self, system_instructions, input, model_settings, tools, *rest, **options):  # noqa: A002
        """Do the same as a stream."""
        items, tokens = self._check(system_instructions, input)
        script = ScriptedModel([self._answer(tokens)])
        async for event in script.stream_response(system_instructions, items, model_settings, tools, *rest, **options):
            yield event

    def _check(self, instructions, items):
        tokens = estimate_text_tokens(json.dumps(items) + (instructions or ""))
        if tokens > self.window:
            self.refusals += 1
            raise make_overflow(tokens, self.window)
        check_items(items)
        self.seen.append(json.loads(json.dumps(items)))
        return items, tokens

    def _answer(self, tokens):
        step = self.done
        self.done += 1
        usage = Usage(
            1, tokens, InputTokensDetails(cached_tokens=0, cache_write_tokens=0), 10, total_tokens=tokens + 10
        )
        if step in self.answers:
            output = self.answers[step]
        elif step >= self.steps:
            output = [assistant_message("done", item_id=f"m{step}")]
        else:
            output = [function_call("read_log", {"step": step}, call_id=f"c{step}", item_id=f"fc{step}")]
        return ModelResponse(output=output, usage=usage, response_id=f"r{step}")


class StrictProvider(ModelProvider):
    """Knows one model."""

    def __init__(self, model):
        self.model = model

    def get_model(self, model_name):
        """Return it."""
        return self.model


def make_overflow(tokens, window):
    """Return the error that the OpenAI client raises for a request that is too long."""
    message = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens."
    )
    request = httpx2.Request("POST", "http://provider.test/v1/responses")
    response = httpx2.Response(400, request=request)
    body = {"message": message, "code": "context_length_exceeded", "type": "invalid_request_error", "param": "input"}
    return BadRequestError(message, response=response, body=body)


def check_items(items):
    """Fail as the Responses API does for broken pairs of calls and outputs, and for reasoning without its item."""
    due = set()
    for position, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call":
            due.add(item["call_id"])
        elif kind == "function_call_output":
            assert item["call_id"] in due, "an output without its call"
            due.discard(item["call_id"])
        elif kind == "reasoning":
            follower = items[position + 1] if position + 1 < len(items) else {}
            assert follower.get("type") in {"reasoning", "function_call", "message"}, "reasoning without its item"
            assert follower.get("role", "assistant") == "assistant", "reasoning without its item"
        if kind == "message" and item.get("role") == "user":
            assert not due, "a call without its output"
    assert not due, "a call without its output"


def make_holdfast(window=30_000, store=None, **options):
    """Return the adapter with a store in memory."""
    return HoldfastRuns(window=window, store=store or MemoryStore(), **options)


def make_agent(holdfast=None, tools=(read_log,), **options):
    """Return an agent, with the recall tool of ``holdfast``."""
    recall = [] if holdfast is None else [holdfast.recall_tool]
    return Agent("Operator", instructions="You look after servers.", model="strict", tools=[*tools, *recall], **options)


def run_agent(agent, run_config, prompt=PROMPT, way="run", session=None, **more_options):
    """Let the agent work on one prompt and return the result of the run."""
    options = {"run_config": run_config, "session": session, "max_turns": 1_000, **more_options}
    if way == "run_sync":
        try:
            return Runner.run_sync(agent, prompt, **options)
        finally:
            # The SDK keeps the loop for the next run of the thread.
            asyncio.get_event_loop_policy().get_event_loop().close()
            asyncio.set_event_loop(None)

    async def run():
        if way == "run":
            return await Runner.run(agent, prompt, **options)
        result = Runner.run_streamed(agent, prompt, **options)
        async for _ in result.stream_events():
            pass
        return result

    return asyncio.run(run())


def list_outputs(items):
    """Return the outputs of tool calls."""
    return [item["output"] for item in items if item.get("type") == "function_call_output"]


def test_two_adapters_on_one_run_work_as_one(caplog):
    """A configuration that is Holdfast's already stays as it is, and one line says so."""
    model, (first, second) = StrictModel(), (make_holdfast(), make_holdfast())
    config = first.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    again = second.run_config(base=config)
    assert run_agent(make_agent(first), again).final_output == "done"
    assert model.refusals == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.integrations"]
    assert len(lines) == 1
    assert "base is a run configuration of Holdfast already" in lines[0]


@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_agent_lives_past_its_window(way):
    """An agent that reads three windows of logs finishes; its result keeps the whole history; no request is refused;
    and each request begins as the one before it did, but for compactions.
    """
    model, events = StrictModel(), []
    holdfast = make_holdfast(listener=events.append)
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    result = run_agent(make_agent(holdfast), config, way=way)
    assert result.final_output == "done"
    assert list_outputs(result.to_input_list()) == [write_log(step) for step in range(40)]
    compactions = [event for event in events if isinstance(event, CompactionEnded)]
    assert model.refusals == 0
    assert len(compactions) >= 2
    breaks = 0
    for before, after in zip(model.seen, model.seen[1:], strict=False):
        breaks += after[: len(before)] != before
        assert RULE in json.dumps(after[0])
    assert breaks == len(compactions)


@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_agent_without_holdfast_dies_of_the_overflow(way):
    """The same agent alone is refused."""
    config = RunConfig(model_provider=StrictProvider(StrictModel()))
    with pytest.raises(BadRequestError):
        run_agent(make_agent(), config, way=way)


def test_trimmer_of_the_sdk_does_not_help_in_one_long_turn():
    """The SDK's own remedy counts turns by user messages, so it trims nothing of a run that works on one prompt."""
    model = StrictModel()
    config = RunConfig(model_provider=StrictProvider(model), call_model_input_filter=ToolOutputTrimmer())
    with pytest.raises(BadRequestError):
        run_agent(make_agent(), config)


@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_overflow_is_recovered_inside_of_the_call(way):
    """A window smaller than anybody knew: the refused call is made again with less, and the run never sees it."""
    model = StrictModel(window=12_000)
    holdfast = make_holdfast(window=200_000)
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    result = run_agent(make_agent(holdfast), config, way=way)
    assert result.final_output == "done"
    assert 1 <= model.refusals <= 3


def test_overflow_of_an_agent_with_a_model_of_its_own():
    """A run configuration does not see the model of such an agent: it is wrapped, or it is that of the run."""
    for is_model_of_run in (False, True):
        model = StrictModel(window=12_000)
        holdfast = make_holdfast(window=200_000)
        agent = make_agent(holdfast)
        if is_model_of_run:
            config = holdfast.run_config(base=RunConfig(model=model))
        else:
            agent, config = agent.clone(model=holdfast.wrap_model(model)), holdfast.run_config()
        assert run_agent(agent, config).final_output == "done"
        assert 1 <= model.refusals <= 3


def test_recall_reads_back_what_is_not_shown():
    """The tool finds a line of an early step."""
    call = function_call("recall", {"search": "step 003, line 77"}, call_id="c35", item_id="fc35")
    model = StrictModel(answers={35: [call]})
    holdfast = make_holdfast()
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    result = run_agent(make_agent(holdfast), config)
    outputs = list_outputs(result.to_input_list())
    assert "step 003" in outputs[35]
    assert "step 003, line 77" not in json.dumps(model.seen[35])


def test_decisions_survive_a_restart_with_a_session(tmp_path):
    """A new process on the same session and store shows what was shown before, so the prompt cache holds."""
    store, seen = MemoryStore(), []
    for number, prompt in enumerate(("Find out why it is slow.", "And now?")):
        session = SQLiteSession("one", tmp_path / "sessions.db")
        model = StrictModel(steps=25 + 100 * number, first_step=100 * number)
        holdfast = make_holdfast(store=store)
        config = holdfast.run_config(session, RunConfig(model_provider=StrictProvider(model)))
        run_agent(make_agent(holdfast), config, prompt, session=session)
        session.close()
        seen.append(model.seen)
    before, after = seen[0][-1], seen[1][0]
    assert is_extract(after[0]["content"][0]["text"])
    assert after[: len(before)] == before


def test_sessions_do_not_mix():
    """Two sessions with the same prompt are two conversations."""
    store = MemoryStore()
    for name in ("one", "two"):
        holdfast = make_holdfast(store=store)
        config = holdfast.run_config(name, RunConfig(model_provider=StrictProvider(StrictModel(steps=2))))
        run_agent(make_agent(holdfast), config)
    assert len(store.list_sessions()) == 2


@pytest.mark.parametrize("way", ["run", "run_streamed"])
@pytest.mark.parametrize("uses_session", [True, False])
def test_runs_one_after_another_in_one_task_are_one_conversation(way, uses_session):
    """A chat is one task that starts run after run: all of them continue one log, so the prompt cache holds between
    them. The SDK makes the first call of each run in another task.
    """
    store = MemoryStore()
    holdfast = make_holdfast(store=store)
    session = SQLiteSession("chat") if uses_session else None
    agent = make_agent(holdfast)
    seen = []

    async def chat():
        items = []
        for number in range(3):
            model = StrictModel(steps=20 + 100 * number, first_step=100 * number)
            config = holdfast.run_config(session, RunConfig(model_provider=StrictProvider(model)))
            prompt = {"role": "user", "content": f"{PROMPT} Part {number}."}
            given = {"input": [prompt] if uses_session else [*items, prompt], "session": session, "run_config": config}
            if way == "run":
                result = await Runner.run(agent, max_turns=1_000, **given)
            else:
                result = Runner.run_streamed(agent, max_turns=1_000, **given)
                async for _ in result.stream_events():
                    pass
            items = result.to_input_list()
            seen.append(model.seen)

    asyncio.run(chat())
    assert len(store.list_sessions()) == 1
    for earlier, later in itertools.pairwise(seen):
        assert later[0][: len(earlier[-1])] == earlier[-1]


def test_runs_of_one_prompt_at_the_same_time():
    """Runs without a session that begin alike do not undo each other's decisions, also after overflows: each keeps the
    prompt cache as well as one that runs alone.
    """

    def count_breaks(holdfast, first_steps):
        models = []
        for first_step in first_steps:
            models.append(StrictModel(steps=first_step + 20, window=12_000, first_step=first_step, pause=0.001))

        async def run_all():
            runs = []
            for model in models:
                config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
                runs.append(Runner.run(make_agent(holdfast), PROMPT, run_config=config, max_turns=100))
            return await asyncio.gather(*runs)

        assert [result.final_output for result in asyncio.run(run_all())] == ["done"] * len(models)
        breaks = []
        for first_step, model in zip(first_steps, models, strict=True):
            pairs = list(zip(model.seen, model.seen[1:], strict=False))
            breaks.append(sum(after[: len(before)] != before for before, after in pairs))
            calls = [item["call_id"] for shown in model.seen for item in shown if item.get("type") == "function_call"]
            assert all(int(call_id[1:]) // 100 * 100 == first_step for call_id in calls)
        return breaks

    (breaks_alone,) = count_breaks(make_holdfast(window=200_000), [100])
    assert max(count_breaks(make_holdfast(window=200_000), [100, 200, 300])) <= breaks_alone + 1


def test_items_that_are_not_shortened_stay_as_they_are():
    """Pictures, reasoning and items of hosted tools go to the model as the SDK has them, reasoning before its item."""
    reasoning = ResponseReasoningItem(id="rs1", type="reasoning", summary=[], encrypted_content="c2VjcmV0")
    answers = {0: [reasoning, function_call("read_log", {"step": 0}, call_id="c0", item_id="fc0")]}
    model = StrictModel(steps=2, answers=answers)
    holdfast = make_holdfast()
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    search = {"type": "web_search_call", "id": "ws1", "status": "completed", "action": {"type": "search", "query": "a"}}
    prompt = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
            ],
        },
        search,
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A dot."}]},
        {"role": "user", "content": PROMPT},
    ]
    run_agent(make_agent(holdfast), config, prompt)
    last = model.seen[-1]
    assert last[:4] == prompt
    assert [item.get("type") for item in last[4:7]] == ["reasoning", "function_call", "function_call_output"]
    assert last[4]["encrypted_content"] == "c2VjcmV0"


def test_picture_beside_a_shortened_text_stays():
    """A tool result of a large text and a picture: the text becomes a preview, the picture stays."""

    @function_tool
    def take_screenshot() -> list[ToolOutputText | ToolOutputImage]:
        """Show the screen."""
        return [ToolOutputText(text=write_log(1, 3_000)), ToolOutputImage(image_url="data:image/png;base64,AAAA")]

    model = StrictModel(steps=1, answers={0: [function_call("take_screenshot", {}, call_id="c0", item_id="fc0")]})
    holdfast = make_holdfast()
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    assert run_agent(make_agent(holdfast, tools=(take_screenshot,)), config).final_output == "done"
    (output,) = list_outputs(model.seen[-1])
    assert [part["type"] for part in output] == ["input_text", "input_image"]
    assert "recall(id=" in output[0]["text"]
    assert output[1]["image_url"] == "data:image/png;base64,AAAA"


def test_output_of_another_kind_of_tool_keeps_its_kind():
    """A shortened item is written over the old one, so fields that Holdfast does not interpret stay."""
    prompt = [
        {"role": "user", "content": PROMPT},
        {"type": "custom_tool_call", "id": "ctc1", "call_id": "x", "name": "shell", "input": "cat log"},
        {"type": "custom_tool_call_output", "id": "cto1", "call_id": "x", "output": write_log(1, 3_000)},
        {"role": "user", "content": "And?"},
    ]
    model = StrictModel(steps=0)
    holdfast = make_holdfast()
    run_agent(make_agent(holdfast), holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model))), prompt)
    (shown,) = model.seen
    assert shown[:2] + shown[3:] == prompt[:2] + prompt[3:]
    assert shown[2]["type"] == "custom_tool_call_output"
    assert "recall(id=" in str(shown[2]["output"])


def test_reasoning_and_parallel_calls_survive_compactions():
    """Answers with reasoning and two calls each: no request breaks a pair or leaves reasoning without its item."""
    answers = {}
    for step in range(25):
        reasoning = ResponseReasoningItem(
            id=f"rs{step}", type="reasoning", summary=[], encrypted_content="c2VjcmV0" * 50
        )
        calls = [function_call("read_log", {"step": step}, call_id=f"c{step}{x}", item_id=f"f{step}{x}") for x in "ab"]
        answers[step] = [reasoning, *calls]
    model, events = StrictModel(steps=25, answers=answers), []
    holdfast = make_holdfast(listener=events.append)
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    assert run_agent(make_agent(holdfast), config).final_output == "done"
    assert model.refusals == 0
    assert any(isinstance(event, CompactionEnded) for event in events)


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_reasoning_is_shown_as_the_run_gives_it_now(way):
    """Where a later run leaves out the ids of reasoning (``reasoning_item_id_policy``), they are not shown again from
    the log, so a provider that has lost such an item does not refuse the request.
    """
    holdfast, session = make_holdfast(), SQLiteSession("ids")
    reasoning = ResponseReasoningItem(id="rs_1", type="reasoning", summary=[])
    call = function_call("read_log", {"step": 1}, call_id="c1")
    model = ScriptedModel()
    shown = []
    for policy, outputs in ((None, [reasoning, call]), ("omit", [])):
        model.extend([*([outputs] if outputs else []), [assistant_message("done")]])
        base = RunConfig(model=model, reasoning_item_id_policy=policy)
        run_agent(make_agent(holdfast), holdfast.run_config(session, base), way=way, session=session)
        shown.append([item for item in model.calls[-1].input if item.get("type") == "reasoning"])
    assert [item.get("id") for (item,) in shown] == ["rs_1", None]


def test_structured_output_hand_offs_and_agents_as_tools():
    """A hand-off goes on in the same conversation, an agent that is a tool has its own, and the answer is typed."""

    class Finding(BaseModel):
        cause: str

    store = MemoryStore()
    holdfast = make_holdfast(store=store)
    expert = make_agent(holdfast, output_type=Finding).clone(name="Expert")
    helper = make_agent(holdfast).clone(name="Helper")
    helper_tool = helper.as_tool("ask_helper", "Asks the helper.")
    first = make_agent(holdfast, tools=(read_log, helper_tool), handoffs=[expert])
    answers = {
        20: [function_call("ask_helper", {"input": "Look at the disk."}, call_id="h", item_id="fh")],
        24: [assistant_message("The disk is full.", item_id="m24")],
        25: [function_call("transfer_to_expert", {}, call_id="t", item_id="ft")],
        30: [assistant_message('{"cause": "disk"}', item_id="m30")],
    }
    model = StrictModel(steps=100, answers=answers)
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    result = run_agent(first, config)
    assert result.final_output == Finding(cause="disk")
    assert result.last_agent is expert
    assert model.refusals == 0
    keys = [info.key for info in store.list_sessions()]
    assert len(keys) == 2
    # By their first messages, and not since another task runs the helper.
    assert not any(key.endswith("-2") for key in keys)


def test_usage_of_answers_is_passed_on():
    """The log knows what the requests took, so the estimates get better."""
    store = MemoryStore()
    holdfast = make_holdfast(store=store)
    config = holdfast.run_config("s", RunConfig(model_provider=StrictProvider(StrictModel(steps=3))))
    result = run_agent(make_agent(holdfast), config)
    key = holdfast.get_history(result.to_input_list(), "s").key
    usages = [entry.body.usage for entry in store.read_entries(key) if isinstance(entry.body, AnswerEntry)]
    # The answer that ends a run is only recorded when the conversation goes on.
    assert [usage.output for usage in usages] == [10, 10, 10]
    assert all(usage.input > 0 for usage in usages)


@pytest.mark.parametrize("window", [32_000, 200_000])
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("uses_responses", [False, True])
def test_models_of_the_sdk_against_the_strict_provider(strict_provider, uses_responses, is_streamed, window):
    """The SDK's own models over HTTP, with encrypted reasoning and two calls in each answer: the provider has nothing
    to refuse but the first request that is too long, if the window was not known.
    """
    script = [
        ScriptedAnswer("I look.", (("read_log", {"step": step}), ("read_log", {"step": step + 100})), "Where is it?")
        for step in range(20)
    ]
    served = strict_provider(window=32_000, script=[*script, ScriptedAnswer("done")])
    holdfast = make_holdfast(window=window)
    include = ["reasoning.encrypted_content"] if uses_responses else None
    settings = ModelSettings(store=False, response_include=include)
    agent = make_agent(holdfast, model_settings=settings).clone(model="gpt-5.1")

    async def run():
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client:
            provider = OpenAIProvider(openai_client=client, use_responses=uses_responses)
            config = holdfast.run_config(base=RunConfig(model_provider=provider))
            if not is_streamed:
                return await Runner.run(agent, PROMPT, run_config=config, max_turns=100)
            result = Runner.run_streamed(agent, PROMPT, run_config=config, max_turns=100)
            async for _ in result.stream_events():
                pass
            return result

    assert asyncio.run(run()).final_output == "done"
    refusals = [request for request in served.provider.requests if isinstance(request.reply, RefusalReply)]
    assert len(refusals) == (window > 32_000)
    requests = served.provider.requests
    assert sum(request.cached for request in requests) > 0.6 * sum(request.tokens for request in requests)


def test_overflow_that_a_stream_tells_as_an_event():
    """A stream that fails before its answer begins is made again with less; its first events are seen twice at most."""

    class FailingStreams(StrictModel):
        async def stream_response(self, *given, **options):
            """Refuse with an event."""
            try:
                async for event in super().stream_response(*given, **options):
                    yield event
            except BadRequestError as error:
                yield ResponseErrorEvent(
                    type="error",
                    code="context_length_exceeded",
                    message=error.body["message"],
                    param=None,
                    sequence_number=0,
                )

    model = FailingStreams(window=12_000)
    holdfast = make_holdfast(window=200_000)
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    assert run_agent(make_agent(holdfast), config, way="run_streamed").final_output == "done"
    assert 1 <= model.refusals <= 3


def test_error_that_is_no_overflow_goes_to_the_run():
    """The provider's other errors are the run's own, after one call."""

    class WithoutKey(StrictModel):
        async def get_response(self, *given, **options):
            """Refuse the key."""
            self.refusals += 1
            response = httpx2.Response(401, request=httpx2.Request("POST", "http://provider.test"))
            raise AuthenticationError("wrong key", response=response, body=None)

    model = WithoutKey()
    holdfast = make_holdfast()
    with pytest.raises(AuthenticationError):
        run_agent(make_agent(holdfast), holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model))))
    assert model.refusals == 1


def test_a_conversation_that_the_server_keeps_is_left_alone():
    """With ``conversation_id`` the input is only what is new: it goes to the server as it is."""
    store = MemoryStore()
    seen = []

    class ServerModel(StrictModel):
        def _check(self, instructions, items):
            seen.append(json.loads(json.dumps(items)))
            return items, 100

    holdfast = make_holdfast(window=8_000, store=store)
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(ServerModel(steps=4))))

    async def run():
        return await Runner.run(make_agent(holdfast), PROMPT, run_config=config, conversation_id="conv_1", max_turns=20)

    assert asyncio.run(run()).final_output == "done"
    assert [list_outputs(items) for items in seen] == [[], *[[write_log(step)] for step in range(4)]]


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_a_long_prompt_of_a_conversation_that_the_server_keeps(way):
    """A prompt that would be shown as a preview elsewhere goes to the server as it is, and once: it is kept there."""
    seen = []

    class ServerModel(StrictModel):
        def _check(self, instructions, items):
            seen.append(json.loads(json.dumps(items)))
            return items, 100

    prompt = write_log(1, 1_000)
    for options in ({"conversation_id": "conv_1"}, {"previous_response_id": "r1"}, {}):
        seen.clear()
        holdfast = make_holdfast()
        config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(ServerModel(steps=1))))
        run_agent(make_agent(holdfast), config, prompt, way=way, **options)
        is_sent_whole = seen[0] == [{"role": "user", "content": prompt}]
        assert is_sent_whole == bool(options)
        if options:
            assert [item["type"] for item in seen[1]] == ["function_call_output"]


def test_run_that_waits_for_approval_goes_on():
    """A run that was interrupted, saved and resumed shows what it showed before, by its name also in a new process."""

    @function_tool(needs_approval=True)
    def restart(name: str) -> str:
        """Restart a server."""
        return f"{name} is restarted"

    store = MemoryStore()
    call = function_call("restart", {"name": "db"}, call_id="c30", item_id="fc30")
    model = StrictModel(steps=33, answers={30: [call]})
    holdfast = make_holdfast(store=store)
    agent = make_agent(holdfast, tools=(read_log, restart))
    result = run_agent(agent, holdfast.run_config("one", RunConfig(model_provider=StrictProvider(model))))
    saved_state = result.to_state().to_json()

    async def resume():
        state = await RunState.from_json(agent, saved_state)
        state.approve(state.get_interruptions()[0])
        new_config = make_holdfast(store=store).run_config("one", RunConfig(model_provider=StrictProvider(model)))
        return await Runner.run(agent, state, run_config=new_config, max_turns=1_000)

    assert asyncio.run(resume()).final_output == "done"
    before, after = model.seen[30], model.seen[31]
    assert after[: len(before)] == before
    assert list_outputs(after)[-1] == "db is restarted"


def test_own_filter_of_the_run_is_called_first():
    """The user's filter and its edit of the history between calls are respected."""
    calls = []

    def drop_first_pair(data):
        calls.append(len(data.model_data.input))
        items = data.model_data.input
        shorter = items[:1] + items[3:] if len(items) > 20 else items
        return ModelInputData(input=shorter, instructions="You look after disks.")

    model = StrictModel()
    holdfast = make_holdfast()
    base = RunConfig(model_provider=StrictProvider(model), call_model_input_filter=drop_first_pair)
    assert run_agent(make_agent(holdfast), holdfast.run_config(base=base)).final_output == "done"
    assert model.refusals == 0
    assert len(calls) == len(model.seen)


def list_warnings(caplog):
    """Return the lines that Holdfast logged."""
    return [record.getMessage() for record in caplog.records if record.name == "holdfast.integrations"]


def test_two_adapters_on_one_run_are_one(caplog):
    """A configuration of Holdfast is not wrapped again, and one line says so."""
    model = StrictModel()
    holdfast = make_holdfast()
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    other = make_holdfast()
    assert other.run_config(base=config) is config
    assert run_agent(make_agent(holdfast), config).final_output == "done"
    assert len(list_warnings(caplog)) == 1


@pytest.mark.parametrize("has_other_recall", [False, True])
def test_an_agent_without_the_recall_tool_is_left_alone(caplog, has_other_recall):
    """Its model would be told to call a tool that is not there, which ends the run, or one of the application's own
    with the same name. One line says what to add.
    """

    @function_tool
    def recall(topic: str) -> str:
        """Read what was remembered."""
        return topic

    model = StrictModel(steps=5, window=1_000_000)
    config = make_holdfast(window=4_000).run_config(base=RunConfig(model_provider=StrictProvider(model)))
    tools = (read_log, recall) if has_other_recall else (read_log,)
    result = run_agent(make_agent(tools=tools), config)
    assert result.final_output == "done"
    assert list_outputs(model.seen[-1]) == [write_log(step) for step in range(5)]
    (warning,) = list_warnings(caplog)
    assert "add HoldfastRuns.recall_tool" in warning


@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_a_store_that_cannot_be_opened_does_not_stop_the_run(tmp_path, caplog, way):
    """The run goes on with its whole history, and one line of the log says why."""
    model = StrictModel(steps=3)
    (tmp_path / "store.db").write_text("this is no database, and it is long enough to be looked at" * 100)
    holdfast = make_holdfast(store=tmp_path / "store.db")
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    assert run_agent(make_agent(holdfast), config, way=way).final_output == "done"
    assert len(list_warnings(caplog)) == 1


def test_example_lives_past_its_window(capsys):
    """The example reads logs of three windows, is never refused, and finds an early line again."""
    example = Path(__file__).parents[2] / "examples/integrations/openai_agents.py"
    runpy.run_path(str(example), run_name="__main__")
    found, answer, _, _, requests = capsys.readouterr().out.splitlines()
    assert found == "recall found the line: True"
    assert answer == "Line 77 of night 2 took 327 ms."
    assert requests == "42 requests, 0 refused"


class SpanRecorder(TracingProcessor):
    """Keeps the finished spans of traces."""

    def __init__(self):
        self.spans = []

    def on_trace_start(self, trace):
        """Do nothing."""

    def on_trace_end(self, trace):
        """Do nothing."""

    def on_span_start(self, span):
        """Do nothing."""

    def on_span_end(self, span):
        """Keep it."""
        self.spans.append(span)

    def shutdown(self):
        """Do nothing."""

    def force_flush(self):
        """Do nothing."""


@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_traces_have_the_events(way):
    """Each event that a listener gets is a custom span of the run's trace too, under the agent's span."""
    recorder, heard = SpanRecorder(), []
    holdfast = make_holdfast(listener=heard.append)
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(StrictModel())))
    set_tracing_disabled(False)
    set_trace_processors([recorder])
    try:
        run_agent(make_agent(holdfast), config, way=way)
    finally:
        set_tracing_disabled(True)
        set_trace_processors([])
    ours = [
        span
        for span in recorder.spans
        if span.span_data.type == "custom" and span.span_data.name.startswith("holdfast.")
    ]
    assert [span.span_data.data for span in ours] == [msgspec.to_builtins(event) for event in heard]
    assert ours
    assert len({span.trace_id for span in recorder.spans}) == 1
    known_ids = {span.span_id for span in recorder.spans}
    assert all(span.parent_id in known_ids for span in ours)


def test_output_of_a_local_shell_before_its_call_is_read_again():
    """The call names an output that was known before it: all is read as if it were new."""
    items = [make_item(kind, number) for number, kind in enumerate(["shell_output", "user", "shell"])]
    groups = group_items(items, group_items(items[:2]))
    assert [group.message for group in groups] == [group.message for group in group_items(items)]


@given(
    st.lists(st.sampled_from(["user", "call", "output", "message", "shell", "shell_output"]), max_size=30), st.data()
)
def test_items_that_are_known_are_read_as_if_they_were_new(kinds, data):
    """With the groups of any earlier call, of the same items or of others, changed in place or not, the groups are
    those of the items alone.
    """
    items = [make_item(kind, number) for number, kind in enumerate(kinds)]
    known_groups = group_items(items[: data.draw(st.integers(0, len(items)))])
    if items and data.draw(st.booleans()):
        changed = data.draw(st.integers(0, len(items) - 1))
        items[changed] = make_item(data.draw(st.sampled_from(kinds)), changed + 100)
    elif items and data.draw(st.booleans()):
        items[data.draw(st.integers(0, len(items) - 1))].update(make_item("user", 500))
    expected, groups = group_items(items), group_items(items, known_groups)
    assert [(group.items, group.message) for group in groups] == [(group.items, group.message) for group in expected]
    assert all(own is given for own, given in zip((i for group in groups for i in group.items), items, strict=True))


def make_item(kind, number):
    """Return an item of the SDK, with another text for each number."""
    if kind == "user":
        return {"role": "user", "content": [{"type": "input_text", "text": f"text {number}"}]}
    if kind == "message":
        return {"type": "message", "role": "assistant", "content": f"answer {number}"}
    if kind == "call":
        return {"type": "function_call", "call_id": f"c{number}", "name": "read_log", "arguments": "{}"}
    if kind == "shell":
        return {"type": "local_shell_call", "id": "lsh", "call_id": f"c{number}", "action": {"type": "exec"}}
    if kind == "shell_output":
        return {"type": "local_shell_call_output", "id": "lsh", "output": f"shell {number}"}
    return {"type": "function_call_output", "call_id": f"c{number - 1}", "output": f"output {number}"}


def test_a_model_that_recovers_is_one_of_its_own_class():
    """The SDK allows output guardrails beside a server's conversation for one class of models alone: it asks for it."""
    model = make_holdfast().wrap_model(StrictModel())
    assert isinstance(model, StrictModel)
    assert isinstance(make_holdfast().run_config(base=RunConfig(model=StrictModel())).model, StrictModel)


def test_a_filter_that_returns_something_else_is_told_by_the_sdk():
    """The user's own filter comes first; what is wrong with its result is the SDK's to say."""
    config = make_holdfast().run_config(
        base=RunConfig(model_provider=StrictProvider(StrictModel()), call_model_input_filter=lambda data: "text")
    )
    with pytest.raises(UserError, match="ModelInputData"):
        run_agent(make_agent(make_holdfast()), config)


def list_texts(model):
    """Return each request that a model saw as text."""
    return [json.dumps(items) for items in model.seen]


@pytest.mark.parametrize("is_in_tool", [True, False])
def test_a_run_without_the_configuration_does_not_get_the_texts_of_another(is_in_tool):
    """A run inside of a tool, or after another in the same task, may share our model and our tool, and not the
    configuration. Its refusal is its own, and neither the model nor ``recall`` shows it what the other run said.
    """
    holdfast = make_holdfast(window=200_000)
    model = StrictModel(steps=8, answers={5: [function_call("ask_helper", {}, call_id="h", item_id="fh")]})
    recall = [function_call("recall", {"search": "server"}, call_id="r", item_id="fr")]
    helper_model = StrictModel(steps=0, window=12_000, answers={0: recall})
    helper = make_agent(holdfast, tools=()).clone(model=holdfast.wrap_model(helper_model))
    outputs, errors = [], []

    async def run_helper():
        result = await Runner.run(helper, "Look at the disk.")
        outputs.extend(list_outputs(result.to_input_list()))
        with pytest.raises(BadRequestError) as error:
            await Runner.run(helper, write_log(1, 2_000))
        errors.append(error)
        return "The disk is full."

    @function_tool
    async def ask_helper() -> str:
        """Ask the helper."""
        return await run_helper() if is_in_tool else "No."

    async def run():
        config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
        agent = make_agent(holdfast, tools=(read_log, ask_helper))
        result = await Runner.run(agent, PROMPT, run_config=config, max_turns=100)
        if not is_in_tool:
            await run_helper()
        return result

    assert asyncio.run(run()).final_output == "done"
    assert errors
    assert outputs == ["Nothing was stored away: all of the conversation is shown."]
    assert not any(RULE in text for text in list_texts(helper_model))


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_a_call_that_the_sdk_repeats_is_made_with_less(way):
    """The SDK repeats a call that failed with what the filter returned: what was refused is not sent a second time, and
    no further step is taken.
    """

    class FailsAfterRefusals(StrictModel):
        failures = 0

        def _check(self, instructions, items):
            if self.failures < min(self.refusals, 1) * 3:
                self.failures += 1
                response = httpx2.Response(500, request=httpx2.Request("POST", "http://provider.test"))
                raise InternalServerError("try again", response=response, body=None)
            return super()._check(instructions, items)

    model = FailsAfterRefusals(window=12_000, steps=12)
    holdfast = make_holdfast(window=200_000)
    retry = ModelRetrySettings(
        max_retries=5, policy=retry_policies.http_status([500]), backoff={"initial_delay": 0.001}
    )
    agent = make_agent(holdfast, model_settings=ModelSettings(retry=retry))
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    assert run_agent(agent, config, way=way).final_output == "done"
    assert (model.refusals, model.failures) == (1, 3)


def test_an_agent_that_stops_at_its_first_tool_is_left_alone(caplog):
    """The first tool that its model calls could be ``recall``, whose text would be the answer of the run. One line says
    what to do.
    """
    model = StrictModel(steps=1)
    holdfast = make_holdfast(window=8_000)
    agent = make_agent(holdfast, tool_use_behavior="stop_on_first_tool")
    prompt = [{"role": "user", "content": write_log(1, 500)}, {"role": "user", "content": PROMPT}]
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
    assert run_agent(agent, config, prompt).final_output == write_log(0)
    assert model.seen == [prompt]
    (warning,) = list_warnings(caplog)
    assert "StopAtTools" in warning


def test_a_session_of_the_server_has_its_name_later():
    """A session that OpenAI's server keeps gets its id when it is first used; its conversation then has that name."""

    class ServerSession(OpenAIConversationsSession):
        def __init__(self):
            super().__init__(openai_client=AsyncOpenAI(api_key="any"))
            self.items = []

        async def get_items(self, limit=None):
            self.session_id = "conv_1"
            return list(self.items)

        async def add_items(self, items):
            self.items += items

    store = MemoryStore()
    for steps in (2, 4):
        session, model = ServerSession(), StrictModel(steps=steps)
        holdfast = make_holdfast(store=store)
        config = holdfast.run_config(session, RunConfig(model_provider=StrictProvider(model)))
        assert run_agent(make_agent(holdfast), config, session=session).final_output == "done"
    (info,) = store.list_sessions()
    assert holdfast.get_history([{"role": "user", "content": PROMPT}], "conv_1").key == info.key


def test_a_provider_that_gives_recovering_models_passes_for_its_own_class():
    """The SDK's session over a websocket wants a provider of one class, with what that has."""
    provider = MultiProvider(openai_api_key="any", openai_use_responses_websocket=True)
    config = make_holdfast().run_config(base=RunConfig(model_provider=provider))
    session = ResponsesWebSocketSession(provider=provider.openai_provider, run_config=config)
    assert session.run_config is config


def test_tasks_that_go_on_after_their_runs_share_a_conversation():
    """Workers that take turns with one session: the second goes on with what the first one decided."""
    store, session = MemoryStore(), SQLiteSession("one")
    holdfast = make_holdfast(store=store)
    models = [StrictModel(steps=25), StrictModel(steps=105, first_step=100)]

    async def run():
        may_end, turns = asyncio.Event(), [asyncio.Event(), asyncio.Event()]

        async def work(number):
            config = holdfast.run_config(session, RunConfig(model_provider=StrictProvider(models[number])))
            await Runner.run(make_agent(holdfast), PROMPT, session=session, run_config=config, max_turns=100)
            turns[number].set()
            await may_end.wait()

        tasks = []
        for number in range(2):
            tasks.append(asyncio.create_task(work(number)))
            await asyncio.wait_for(turns[number].wait(), 60)
        may_end.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    session.close()
    assert len(store.list_sessions()) == 1
    before, after = models[0].seen[-1], models[1].seen[0]
    assert is_extract(after[0]["content"][0]["text"])
    assert after[: len(before)] == before


@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_runs_without_a_session_that_begin_alike_are_apart(way):
    """Many users begin with the same word. Without a session, a later run goes on with the one whose messages it has,
    and no model reads what the others said.
    """
    store = MemoryStore()
    holdfast = make_holdfast(store=store)

    def run(prompt, answers):
        model = StrictModel(answers=answers)
        config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(model)))
        return run_agent(make_agent(holdfast), config, prompt, way=way).to_input_list()

    def reply(step, text):
        return {step: [assistant_message(text, item_id=f"m{step}")]}

    answer = run("Hi", reply(0, "Hello!"))
    secret = run([*answer, {"role": "user", "content": "My secret is 4711."}], reply(0, "I see."))
    assert len(store.list_sessions()) == 1
    search = function_call("recall", {"search": "secret"}, call_id="c0", item_id="fc0")
    others = run("Hi", {0: [search], **reply(1, "Hello!")})
    (output,) = list_outputs(others)
    assert "nothing in this conversation's history matches" in output
    assert len(store.list_sessions()) == 2
    keys = {holdfast.get_history(items).key for items in (secret, others)}
    assert keys == {info.key for info in store.list_sessions()}


def test_copies_of_configurations_and_models():
    """A copy of a configuration, shallow or deep, works as it does without Holdfast."""
    holdfast = make_holdfast()
    model = StrictModel()
    config = holdfast.run_config(base=RunConfig(model=model))
    for copied in (copy.copy(config), copy.deepcopy(config)):
        assert run_agent(make_agent(holdfast), copied).final_output == "done"
    assert isinstance(copy.copy(config.model), StrictModel)
    assert holdfast.wrap_model(config.model) is config.model


def test_events_without_a_type_pass():
    """The SDK lets events through that it does not know, of whatever shape, and so do we."""

    class OddStreams(StrictModel):
        async def stream_response(self, *given, **options):
            """Begin with an event of another shape."""
            yield {"event": "ping"}
            async for event in super().stream_response(*given, **options):
                yield event

    holdfast = make_holdfast()
    config = holdfast.run_config(base=RunConfig(model_provider=StrictProvider(OddStreams(steps=1))))
    assert run_agent(make_agent(holdfast), config, way="run_streamed").final_output == "done"


def test_items_are_needed_to_find_a_conversation():
    """Without items there is no conversation to find, and the error says so."""
    with pytest.raises(FormatError, match="by its items"):
        make_holdfast().get_history([])
