"""The conversation manager in real Strands agents, with a model that refuses what a provider refuses."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("strands", reason="Strands Agents is not installed (pip install 'holdfast[strands]')")

from pydantic import BaseModel
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager, SlidingWindowConversationManager
from strands.middleware import InvokeModelStage
from strands.models import CacheConfig, Model
from strands.multiagent import GraphBuilder, Swarm
from strands.session.file_session_manager import FileSessionManager
from strands.session.snapshot_session_manager import SnapshotSessionManager
from strands.storage import LocalFileStorage
from strands.types.exceptions import ContextWindowOverflowException, EventLoopException
from strands.vended_plugins.context_injector import ContextInjector

from holdfast.events import CompactionEnded
from holdfast.integrations.strands import HoldfastConversationManager
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import ScriptedAnswer

EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "strands_agent.py"
RULE = "Never restart the server."
PROMPT = f"Find out why it is slow. {RULE}"


def write_log(step, lines=120):
    """Return what the tool prints."""
    return "\n".join(f"step {step:03}, line {line}: {line * 7919 % 1009} ms" for line in range(lines))


@tool
def read_log(step: int) -> str:
    """Read the log of one step."""
    return write_log(step)


class StrictModel(Model):
    """A model that reads one log after the other, and refuses what its provider would refuse."""

    def __init__(self, steps=40, window=30_000, recalls=None, calls_per_step=1, error=ContextWindowOverflowException):
        self.steps = steps
        self.window = window
        self.recalls = recalls or {}
        """Arguments of the recall that is called in place of a step."""
        self.calls_per_step = calls_per_step
        self.error = error
        self.starts_before_refusal = False
        self.speaks_before_refusal = False
        self.is_strict = True
        self.hand_over_at = None
        """The step at which a swarm's agent hands over to the second one."""
        self.seen = []
        self.done = 0
        self.refusals = 0

    def update_config(self, **_):
        """Take no settings."""

    def get_config(self):
        """Name no model."""
        return {}

    async def structured_output(self, output_model, prompt, system_prompt=None, **_):
        """Nobody calls this: it is deprecated."""
        raise NotImplementedError
        yield

    async def stream(self, messages, tool_specs=None, system_prompt=None, **_):
        """Refuse, call a tool or end."""
        tokens = estimate_text_tokens(str([tool_specs, system_prompt, messages]))
        if tokens > self.window:
            self.refusals += 1
            if self.starts_before_refusal or self.speaks_before_refusal:
                yield {"messageStart": {"role": "assistant"}}
            if self.speaks_before_refusal:
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": "Well"}}}
            raise self.error(f"prompt is too long: {tokens} tokens > {self.window} maximum")
        if self.is_strict:
            check_history(messages)
        self.seen.append(copy.deepcopy(messages))
        yield {"messageStart": {"role": "assistant"}}
        for chunk in self.write_answer(tool_specs or []):
            yield chunk
        usage = {"inputTokens": tokens, "outputTokens": 10, "totalTokens": tokens + 10}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}

    def write_answer(self, tool_specs):
        """Return the chunks of the next answer."""
        number, self.done = self.done, self.done + 1
        calls = [("read_log", {"step": number})] * self.calls_per_step if number < self.steps else []
        if number in self.recalls:
            calls = [("recall", self.recalls[number])]
        if number == self.hand_over_at:
            calls = [("handoff_to_agent", {"agent_name": "second", "message": "Go on.", "context": {}})]
        if not calls and any(spec["name"] == "Verdict" for spec in tool_specs):
            calls = [("Verdict", {"cause": "disk"})]
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": "I look." if calls else "done"}}}
        yield {"contentBlockStop": {}}
        for place, (name, arguments) in enumerate(calls):
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": f"c{number}_{place}", "name": name}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}


def check_history(messages):
    """Fail as Bedrock does: roles alternate, the user begins, and each result stands right after its call."""
    due = set()
    for place, message in enumerate(messages):
        assert set(message) == {"role", "content"}
        assert message["role"] == ("user", "assistant")[place % 2], "roles do not alternate"
        assert message["content"], "a message without content"
        results = {block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block}
        assert results == due, "calls and results do not match"
        assert all(block["toolResult"]["content"] for block in message["content"] if "toolResult" in block)
        due = {block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block}
    assert not due


def make_agent(model, manager=None, tools=(read_log,), **options):
    """Return an agent that prints nothing."""
    if manager is None:
        manager = HoldfastConversationManager(window=30_000, store=MemoryStore())
    return Agent(model, tools=list(tools), conversation_manager=manager, callback_handler=None, **options)


def list_texts(message):
    """Return the texts of a message."""
    return [block["text"] for block in message["content"] if "text" in block]


def list_results(agent):
    """Return the texts of all tool results that the agent keeps."""
    results = [
        block["toolResult"] for message in agent.messages for block in message["content"] if "toolResult" in block
    ]
    return [result["content"][0]["text"] for result in results]


@pytest.mark.parametrize("is_async", [False, True])
def test_agent_lives_past_its_window(is_async):
    """An agent that reads three windows of logs finishes; its messages stay whole; no request is refused; and each
    request begins as the one before it did, but for compactions.
    """
    model, events = StrictModel(), []
    manager = HoldfastConversationManager(window=30_000, store=MemoryStore(), listener=events.append)
    agent = make_agent(model, manager)
    result = asyncio.run(agent.invoke_async(PROMPT)) if is_async else agent(PROMPT)
    assert str(result) == "done\n"
    assert list_results(agent) == [write_log(step) for step in range(40)]
    assert len(agent.messages) == 82
    compactions = [event for event in events if isinstance(event, CompactionEnded)]
    assert model.refusals == 0
    assert len(compactions) >= 2
    breaks = 0
    for before, after in zip(model.seen, model.seen[1:], strict=False):
        breaks += after[: len(before)] != before
        assert RULE in str(after[0])
    assert breaks == len(compactions)


def make_provider_model(name, url):
    """Return a model of Strands whose provider is at ``url``."""
    client = {"base_url": url, "api_key": "any", "max_retries": 0}
    if name == "anthropic":
        from strands.models.anthropic import AnthropicModel

        thinking = {"thinking": {"type": "adaptive"}}
        cache = CacheConfig(strategy="auto")
        return AnthropicModel(
            client_args=client, model_id="claude-opus-5", max_tokens=2_000, params=thinking, cache_config=cache
        )
    if name == "gemini":
        from strands.models.gemini import GeminiModel

        gemini_client = {"api_key": "any", "http_options": {"base_url": url}}
        return GeminiModel(client_args=gemini_client, model_id="gemini-2.5-pro")
    client["base_url"] += "/v1"
    if name == "openai":
        from strands.models.openai import OpenAIModel

        return OpenAIModel(client_args=client, model_id="gpt-4.1")
    from strands.models.openai_responses import OpenAIResponsesModel

    return OpenAIResponsesModel(client_args=client, model_id="gpt-5.1")


@pytest.fixture
def collects_clients():
    """Let go of the clients of a test while their warnings are its own."""
    yield
    gc.collect()


# The models of Strands leave some connections open.
@pytest.mark.usefixtures("collects_clients")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("window", [30_000, 200_000])
@pytest.mark.parametrize("name", ["anthropic", "openai", "responses", "gemini"])
def test_models_of_strands_live_past_the_window_of_a_strict_provider(name, window, strict_provider):
    """The models of Strands with the clients of their providers, against a server that refuses what those refuse: an
    agent finishes with no refusal, with one if its window is not known, and most requests begin in the prompt cache.
    """
    thinking = "Let me see." if name in {"anthropic", "gemini"} else ""
    script = [ScriptedAnswer("I look.", (("read_log", {"step": step}),), thinking=thinking) for step in range(25)]
    served = strict_provider(window=30_000, script=[*script, ScriptedAnswer("done")])
    agent = make_agent(
        make_provider_model(name, served.url), HoldfastConversationManager(window=window, store=MemoryStore())
    )
    assert str(asyncio.run(agent.invoke_async(PROMPT))) == "done\n"
    requests = served.provider.requests
    assert len(requests) == 26 + (window != 30_000)
    assert sum(bool(request.cached) for request in requests) >= 18
    assert len(agent.messages) == 52


@pytest.mark.usefixtures("collects_clients")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_thinking_that_is_bound_to_what_was_before_it_costs_one_refusal(strict_provider):
    """Behind an extract the provider refuses such thinking once; the model of Strands then asks to drop it, and the
    agent finishes.
    """
    calls = [ScriptedAnswer("I look.", (("read_log", {"step": step}),), thinking="Let me see.") for step in range(25)]
    script = [*calls, ScriptedAnswer("done")]
    served = strict_provider(window=30_000, script=script, binds_thinking="always")
    agent = make_agent(make_provider_model("anthropic", served.url))
    assert str(asyncio.run(agent.invoke_async(PROMPT))) == "done\n"
    assert len(served.provider.requests) == 27


def test_streaming_agent_sees_each_chunk_once():
    """``stream_async`` gives the chunks of all answers, also past the window."""

    async def collect():
        return [event["data"] async for event in agent.stream_async(PROMPT) if "data" in event]

    agent = make_agent(StrictModel())
    assert asyncio.run(collect()) == ["I look."] * 40 + ["done"]


def test_agent_without_the_manager_dies_of_the_overflow():
    """The same agent without any reduction is refused."""
    with pytest.raises(ContextWindowOverflowException):
        make_agent(StrictModel(), NullConversationManager())(PROMPT)


@pytest.mark.parametrize("error", [ContextWindowOverflowException, RuntimeError])
@pytest.mark.parametrize("starts_before_refusal", [False, True])
def test_overflow_is_recovered_inside_of_the_call(error, starts_before_refusal):
    """A window smaller than anybody knew: the refused call is made again with less, and the agent never sees it; also
    if Strands does not know the error of the provider, and if the model has announced an answer.
    """
    model = StrictModel(window=12_000, error=error)
    model.starts_before_refusal = starts_before_refusal
    agent = make_agent(model, HoldfastConversationManager(window=200_000, store=MemoryStore()))
    assert str(agent(PROMPT)) == "done\n"
    assert 1 <= model.refusals <= 3
    assert len(agent.messages) == 82


def test_a_refusal_after_the_answer_has_begun_is_the_agents():
    """What callbacks have seen is not said again: the error reaches the caller, and the messages stay whole."""
    model = StrictModel(window=12_000)
    model.speaks_before_refusal = True
    agent = make_agent(model, HoldfastConversationManager(window=200_000, store=MemoryStore()))
    with pytest.raises(ContextWindowOverflowException):
        agent(PROMPT)
    assert model.refusals == 1


def test_another_error_is_the_agents():
    """An error that is no overflow reaches the agent as it is, after one call."""
    model = StrictModel(window=10)
    model.error = lambda _: ValueError("the key is wrong")
    with pytest.raises((ValueError, EventLoopException), match="the key is wrong"):
        make_agent(model)(PROMPT)
    assert model.refusals == 1


def test_recall_reads_back_what_is_not_shown():
    """The tool that the manager registers finds a line of an early step."""
    model = StrictModel(recalls={35: {"search": "step 003, line 77"}, 36: {"id": 5, "page": "x"}})
    agent = make_agent(model)
    agent(PROMPT)
    answer, mistake = list_results(agent)[35:37]
    assert "step 003" in answer
    assert len(mistake) < 500
    assert "«restart» the server" in manager_recall(agent, {"search": "restart"})


def manager_recall(agent, arguments):
    """Read back a text from outside of the agent."""
    return agent.conversation_manager.get_history(agent).answer_recall(arguments)


def test_parallel_calls_stay_together():
    """Three calls in one answer, with results in one message, live past the window."""
    model = StrictModel(steps=15, calls_per_step=3)
    agent = make_agent(model)
    assert str(agent(PROMPT)) == "done\n"
    assert model.refusals == 0
    assert len(list_results(agent)) == 45


def test_a_chat_of_long_prompts_lives_past_its_window():
    """Where what is kept begins with a prompt, it and the extract before it are one message: roles alternate."""
    model, events = StrictModel(steps=0), []
    manager = HoldfastConversationManager(window=30_000, store=MemoryStore(), listener=events.append)
    agent = make_agent(model, manager)
    for step in range(30):
        agent(f"{RULE if step == 0 else ''} Read this: {write_log(step)}")
    assert [event for event in events if isinstance(event, CompactionEnded)]
    assert model.refusals == 0
    assert RULE in str(model.seen[-1])
    assert len(agent.messages) == 60


def test_one_result_that_is_larger_than_the_window_is_a_preview():
    """The model sees a part of it and reads on with ``recall``; the agent keeps it whole."""

    @tool(name="read_log")
    def read_whole_log(step: int) -> str:
        """Read all of it."""
        return write_log(step, 9_000)

    model = StrictModel(steps=1, recalls={1: {"search": '"line 8123:"'}})
    agent = make_agent(model, tools=[read_whole_log])
    assert str(agent(PROMPT)) == "done\n"
    assert model.refusals == 0
    assert "recall(" in str(model.seen[1][-1])
    whole, answer = list_results(agent)
    assert whole == write_log(0, 9_000)
    assert "line 8123" in answer


def test_structured_output_lives_past_the_window():
    """The tool of a structured output is called at the end, and its value comes back."""

    class Verdict(BaseModel):
        """Why it is slow."""

        cause: str

    agent = make_agent(StrictModel())
    assert agent(PROMPT, structured_output_model=Verdict).structured_output == Verdict(cause="disk")


def open_file_session(folder):
    """Return a session manager that writes each message."""
    return FileSessionManager("one", storage_dir=str(folder))


def open_snapshot_session(folder):
    """Return a session manager that writes the agent after each prompt."""
    return SnapshotSessionManager("one", storage=LocalFileStorage(str(folder)))


@pytest.mark.parametrize("open_session", [open_file_session, open_snapshot_session])
def test_decisions_survive_a_restart_with_a_session_manager(open_session, tmp_path):
    """A new agent on the same session and store shows what was shown before, so the prompt cache holds."""
    store, seen, counts = MemoryStore(), [], []
    for prompt in (PROMPT, "And now?"):
        model = StrictModel(steps=25)
        manager = HoldfastConversationManager(window=30_000, store=store)
        agent = make_agent(model, manager, session_manager=open_session(tmp_path))
        counts.append(len(agent.messages))
        agent(prompt)
        seen += model.seen
    assert counts == [0, 52]
    first_of_second = next(index for index, shown in enumerate(seen) if list_texts(shown[-1]) == ["And now?"])
    before, after = seen[first_of_second - 1], seen[first_of_second]
    assert is_extract(list_texts(after[0])[0])
    assert after[: len(before)] == before


def test_decisions_survive_a_restart_of_a_program_that_stores_the_messages_itself():
    """With a name of the session, messages given to a new agent are the same conversation."""
    store = MemoryStore()
    agent = make_agent(StrictModel(steps=25), HoldfastConversationManager(window=30_000, store=store, session="one"))
    agent(PROMPT)
    messages = json.loads(json.dumps(agent.messages))
    model = StrictModel(steps=1)
    make_agent(model, HoldfastConversationManager(store=store, window=30_000, session="one"), messages=messages)("More")
    assert is_extract(list_texts(model.seen[0][0])[0])
    assert len(store.list_sessions()) == 1


def test_a_session_of_another_manager_is_taken_over_whole(tmp_path):
    """A session that a sliding window has cut is read again with all of its messages."""
    for steps in range(4):
        sliding = SlidingWindowConversationManager(window_size=4)
        model = StrictModel(steps=2)
        # The sliding window begins some requests with an answer.
        model.is_strict = False
        make_agent(model, sliding, session_manager=open_file_session(tmp_path))(f"Prompt {steps}")
    agent = make_agent(StrictModel(steps=0), session_manager=open_file_session(tmp_path))
    agent("And now?")
    assert list_texts(agent.messages[0]) == ["Prompt 0"]
    assert len(agent.messages) == 4 * 6 + 2


def test_agents_that_begin_alike_do_not_mix():
    """Two agents with the same prompt and manager are two conversations, and read nothing of each other."""
    store = MemoryStore()
    manager = HoldfastConversationManager(store=store)
    agents = [make_agent(StrictModel(steps=2), manager) for _ in range(2)]
    agents[0]("Hello")
    agents[1]("Hello")
    agents[0]("My code is 4711.")
    assert len(store.list_sessions()) == 2
    assert "4711" in manager_recall(agents[0], {"search": "My code"})
    assert "4711" not in manager_recall(agents[1], {"search": "My code"})


def test_agents_of_a_graph_are_conversations_of_their_own():
    """A graph hands the answer of one agent to the next; each lives past its own window."""
    store = MemoryStore()
    builder = GraphBuilder()
    for name in ("reader", "writer"):
        manager = HoldfastConversationManager(window=30_000, store=store)
        builder.add_node(make_agent(StrictModel(), manager, agent_id=name, name=name), name)
    builder.add_edge("reader", "writer")
    builder.set_entry_point("reader")
    builder.set_max_node_executions(2)
    assert builder.build()(PROMPT).status.value == "completed"
    assert len(store.list_sessions()) == 2


def test_agents_of_a_swarm_hand_over():
    """An agent reads three windows of logs and hands over to another, which does the same."""
    store, agents, models = MemoryStore(), [], []
    for name in ("first", "second"):
        models.append(StrictModel())
        manager = HoldfastConversationManager(window=30_000, store=store)
        agents.append(make_agent(models[-1], manager, agent_id=name, name=name))
    models[0].steps = 41
    models[0].hand_over_at = 40
    result = Swarm(agents, execution_timeout=100, node_timeout=100)(PROMPT)
    assert [node.node_id for node in result.node_history] == ["first", "second"]
    assert [model.refusals for model in models] == [0, 0]
    assert len(store.list_sessions()) == 2


def test_an_agent_as_a_tool_is_a_conversation_of_its_own():
    """A sub-agent that fills its own window answers, and its parent goes on."""
    store = MemoryStore()
    child = make_agent(StrictModel(), HoldfastConversationManager(window=30_000, store=store), name="child")

    @tool(name="read_log")
    def ask_child(step: int) -> str:
        """Let the child look."""
        return f"{step}: {child(PROMPT)}"

    parent = make_agent(StrictModel(steps=2), HoldfastConversationManager(store=store), tools=[ask_child])
    assert str(parent(PROMPT)) == "done\n"
    assert list_results(parent) == ["0: done\n", "1: done\n"]
    assert len(store.list_sessions()) == 2


def test_blocks_that_are_not_shortened_stay_as_they_are():
    """Pictures, documents, thinking, citations, marks of the cache and unknown blocks go to the model as Strands has
    them, also beside a result that is shortened.
    """
    content = [
        {"text": "What is this?"},
        {"image": {"format": "png", "source": {"bytes": b"\x89PNG1"}}},
        {"image": {"format": "png", "source": {"bytes": b"\x89PNG2"}}},
        {"document": {"format": "pdf", "name": "report", "source": {"bytes": b"%PDF"}}},
        {"weather": {"sky": "grey"}},
        {"weather": {"sky": "blue"}},
        {"guardContent": {"text": {"text": "safe", "qualifiers": ["query"]}}},
        {"cachePoint": {"type": "default"}},
    ]
    thinking = [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": b"secret"}},
        {"citationsContent": {"content": [{"text": "It rains."}], "citations": []}},
        {"toolUse": {"toolUseId": "t1", "name": "read_log", "input": {"step": 1}}},
    ]
    result = {
        "toolResult": {
            "toolUseId": "t1",
            "status": "error",
            "content": [{"text": write_log(1, 9_000)}, {"json": {"n": 1}}, content[1], content[4], content[5]],
        }
    }
    history = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": thinking},
        {"role": "user", "content": [result, {"cachePoint": {"type": "default"}}]},
        {"role": "assistant", "content": [{"text": "It rains."}]},
    ]
    model = StrictModel(steps=0, window=10**9)
    manager = HoldfastConversationManager(window=200_000, store=MemoryStore())
    make_agent(model, manager, messages=copy.deepcopy(history))("And now?")
    first, answer, results, *_ = model.seen[0]
    assert first["content"] == content
    assert answer["content"] == thinking
    shown_result, cache_point = results["content"]
    assert cache_point == {"cachePoint": {"type": "default"}}
    assert shown_result["toolResult"]["status"] == "error"
    assert "recall(" in shown_result["toolResult"]["content"][0]["text"]
    # The JSON is a part of the stored text.
    assert shown_result["toolResult"]["content"][1:] == result["toolResult"]["content"][2:]


def test_pictures_beside_a_prompt_that_is_too_long_stay_as_they_are():
    """Of a prompt that is longer than the window the model is shown a part, and its pictures as they are."""
    content = [
        {"image": {"format": "png", "source": {"bytes": b"PNG1"}}},
        {"text": "What is this? " + "Look closely. " * 20_000},
        {"image": {"format": "png", "source": {"bytes": b"PNG2"}}},
        {"cachePoint": {"type": "default"}},
    ]
    model = StrictModel(steps=0)
    agent = make_agent(model)
    agent(content)
    shown = model.seen[0][0]["content"]
    assert shown[0] == content[0]
    assert "What is this?" in shown[1]["text"]
    assert len(shown[1]["text"]) < len(content[1]["text"])
    assert shown[2:] == content[2:]
    assert agent.messages[0]["content"] == content


def test_context_that_a_plugin_injects_for_one_call_is_shown_and_not_kept():
    """Text of ``ContextInjector``, which differs in each call, is at the end of the request; what is before it is as in
    the call before.
    """
    model, events, count = StrictModel(), [], iter(range(1_000))
    injector = ContextInjector(lambda _: f"<now>{next(count)}</now>", trigger="everyTurn")
    manager = HoldfastConversationManager(window=30_000, store=MemoryStore(), listener=events.append)
    agent = make_agent(model, manager, plugins=[injector])
    agent(PROMPT)
    assert model.refusals == 0
    assert list_results(agent) == [write_log(step) for step in range(40)]
    breaks = 0
    for number, (before, after) in enumerate(zip(model.seen, model.seen[1:], strict=False)):
        assert f"<now>{number}</now>" in list_texts(before[-1])[-1]
        breaks += after[: len(before) - 1] != before[:-1]
    assert breaks == len([event for event in events if isinstance(event, CompactionEnded)])
    assert "[nothing" in manager_recall(agent, {"search": "<now>"})


def test_usage_of_answers_is_recorded():
    """What the model counted is known to the report."""
    agent = make_agent(StrictModel(steps=4))
    agent(PROMPT)
    usage = agent.messages[-1]["metadata"]["usage"]
    report = agent.conversation_manager.get_history(agent).report()
    assert abs(report.tokens - usage["inputTokens"]) < 0.1 * usage["inputTokens"]


def test_history_that_the_user_edits_is_followed():
    """Messages that are taken away or rewritten between two prompts are not shown any more."""
    model = StrictModel(steps=25)
    agent = make_agent(model)
    agent(PROMPT)
    agent.messages[2]["content"][0]["toolResult"]["content"] = [{"text": "The log is empty."}]
    del agent.messages[3:]
    agent.messages.append({"role": "assistant", "content": [{"text": "Nothing there."}]})
    agent("And now?")
    shown = str(model.seen[-1])
    assert "The log is empty." in shown
    assert "step 00" not in shown
    assert len(model.seen[-1]) == 5


def test_a_manager_set_on_a_finished_agent_works_from_its_next_call():
    """The middleware is installed at the end of the first prompt, or by the first overflow."""
    model = StrictModel()
    agent = make_agent(model, NullConversationManager())
    agent.conversation_manager = HoldfastConversationManager(window=30_000, store=MemoryStore())
    assert str(agent(PROMPT)) == "done\n"
    assert model.refusals == 1
    assert "recall" in agent.tool_names


def test_two_agents_may_share_a_manager_and_one_agent_installs_it_once():
    """Each agent gets one tool and one middleware, however often it runs."""
    manager = HoldfastConversationManager(window=30_000, store=MemoryStore())
    for _ in range(2):
        model = StrictModel(steps=1)
        agent = make_agent(model, manager)
        agent(PROMPT)
        agent("Again")
        assert len(agent._middleware_registry._handlers[InvokeModelStage]) == 1


@pytest.mark.parametrize("kind", ["store", "tool", "message"])
def test_what_goes_wrong_in_holdfast_does_not_stop_the_agent(kind, tmp_path, caplog):
    """A store that cannot be opened, a tool of the user called recall, a block nobody can read: the agent goes on with
    its whole history, and one line of the log says why.
    """

    @tool(name="recall")
    def remember() -> str:
        """Recall something else."""
        return "else"

    (tmp_path / "store.db").write_text("this is no database, and it is long enough to be looked at" * 100)
    store = tmp_path / "store.db" if kind == "store" else MemoryStore()
    tools = [read_log, remember] if kind == "tool" else [read_log]
    messages = [
        {"role": "user", "content": [{"text": "Hello"}]},
        {
            "role": "assistant",
            "content": [{"guardContent": {"text": "no dictionary"}} if kind == "message" else {"text": "Hi"}],
        },
    ]
    model = StrictModel(steps=3)
    agent = make_agent(model, HoldfastConversationManager(store=store), tools=tools, messages=messages)
    assert str(agent(PROMPT)) == "done\n"
    assert len(model.seen[-1]) == len(agent.messages) - 1
    lines = [record for record in caplog.records if record.name == "holdfast.integrations"]
    assert len(lines) == 1
    assert not lines[0].exc_info


def test_two_managers_on_one_agent_work_as_one(caplog):
    """An agent that is given a second manager after it was made keeps the first one's view, and one line says so."""
    model = StrictModel()
    agent = make_agent(model)
    agent.conversation_manager = HoldfastConversationManager(window=30_000, store=MemoryStore())
    assert str(agent(PROMPT)) == "done\n"
    assert model.refusals == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.integrations"]
    assert len(lines) == 1
    assert "recall" in lines[0]


def test_the_example_runs(capsys):
    """The example finishes, and its model was shown a small part of what its agent said."""
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said, shown = re.findall(r"([\d,]{5,})", capsys.readouterr().out)[:2]
    assert int(shown.replace(",", "")) < int(said.replace(",", "")) / 3


def test_our_spans_are_below_those_of_the_agent(monkeypatch):
    """Each planning is a span below the ones that Strands makes of the agent and its cycles."""
    pytest.importorskip(
        "opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')"
    )
    from strands.telemetry import tracer as strands_tracer
    from telemetry_recording import Recording

    recording = Recording()
    tracer = strands_tracer.Tracer()
    tracer.tracer = recording.tracer_provider.get_tracer("strands")
    monkeypatch.setattr(strands_tracer, "_tracer_instance", tracer)
    manager = HoldfastConversationManager(window=30_000, store=MemoryStore())
    manager._histories._telemetry = recording.telemetry
    Agent(StrictModel(), tools=[read_log], conversation_manager=manager, callback_handler=None)(PROMPT)
    spans = {span.context.span_id: span for span in recording.spans}
    plannings = recording.find_spans("holdfast.plan")
    assert len(plannings) >= 40
    for planning in plannings:
        assert spans[planning.parent.span_id].name in {
            "execute_event_loop_cycle",
            "chat",
            "invoke_agent Strands Agents",
        }
    assert recording.find_spans("holdfast.compact")
    assert len({span.context.trace_id for span in recording.spans}) == 1
