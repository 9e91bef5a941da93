"""What ``bench/frameworks.py`` counts, on the strict provider without a framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from framework_agents.figures import ChildEnd, RowLabels, collect_figures, explain_behind, find_failures, is_better
from framework_agents.judge import CLAUDE_CODE_INSTRUCTION, JudgingProvider, write_summary
from framework_agents.workload import list_processes, make_result, make_workload

from holdfast.state.target import Prices
from holdfast.testing.provider import ProviderSettings
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, RefusalReply

PRICES = Prices(4.0, 20.0, 0.4, 5.0)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("open_file", "run_command", "recall")
]


class PlainLoop:
    """An agent loop as short as can be: it sends what ``show`` returns of its history."""

    def __init__(self, provider, workload, show=lambda messages: messages):
        self.provider = provider
        self.workload = workload
        self.show = show
        self.messages = []
        self.results = {
            step.argument: make_result(step, Random(number)) for number, step in enumerate(workload.iter_steps())
        }
        provider.child_pid = os.getpid()

    def run(self):
        """Say all that the user says; a refusal ends a turn."""
        for number, turn in enumerate(self.workload.turns):
            self.provider.begin_turn(number)
            self.say(turn.prompt)
        return self

    def say(self, prompt):
        """Work until the model calls no tool."""
        self.messages.append({"role": "user", "content": prompt})
        while True:
            reply = self.ask(self.show(self.messages))
            if isinstance(reply, RefusalReply):
                self.provider.record.failures.append((self.provider.record.answers, reply.message))
                return
            text = "".join(part.text for part in reply.parts if hasattr(part, "text"))
            calls = [part for part in reply.parts if hasattr(part, "arguments")]
            message = {"role": "assistant", "content": text or None}
            if calls:
                message["tool_calls"] = [json.loads(bytes(call.raw)) for call in calls]
            self.messages.append(message)
            if not calls:
                return
            for call in calls:
                result = self.results.get(json.loads(call.arguments).get("argument"), "nothing found")
                self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def ask(self, messages, tools=TOOLS):
        """Send one request."""
        body = {"model": "gpt-5.6", "messages": messages, "reasoning_effort": "none"}
        if tools:
            body["tools"] = tools
        return self.provider.answer(make_request(body))


def make_request(body):
    """Return a request as the provider's server would."""
    return IncomingRequest("openai-chat", "generate", json.dumps(body).encode())


def make_provider(workload, window=2_000_000, look_up=None):
    """Return the judging provider."""
    return JudgingProvider(workload, ProviderSettings(window=window, tokenizer="words"), look_up)


def collect(provider, remedy="plain", *, is_ours=False):
    """Return the figures of a finished run."""
    labels = RowLabels("plain", remedy, is_ours, 2_000)
    return collect_figures(labels, provider, ChildEnd("plain 1", 10.0), PRICES)


@pytest.fixture(scope="module")
def workload():
    """A short script with short results."""
    return make_workload(120, seed=5, largest=2_000)


def test_script_is_the_same_for_the_same_seed(workload):
    """All agents do the same: the script and the results depend on the seed alone."""
    assert make_workload(120, seed=5, largest=2_000) == workload
    assert make_workload(120, seed=6, largest=2_000) != workload
    assert sum(1 for _ in workload.iter_steps()) == 120


def test_whole_history_shows_everything(workload):
    """A run that shows all is complete, and has lost no rule and no fact."""
    provider = make_provider(workload)
    PlainLoop(provider, workload).run()
    figures = collect(provider)
    assert figures.is_complete
    assert figures.facts_needed > 10
    assert (figures.refused, figures.rules_lost, figures.shown_share) == (0, 0, 1.0)
    assert figures.cache_read_share > 0.8


def test_missing_rules_and_facts_are_counted(workload):
    """A window of the newest messages loses the rules of earlier turns, and facts that come from before it."""

    def show_newest(messages):
        start = max(0, len(messages) - 9)
        while messages[start]["role"] == "tool":
            start += 1
        return messages[start:]

    provider = make_provider(workload)
    PlainLoop(provider, workload, show_newest).run()
    figures = collect(provider)
    assert figures.rules_lost == 10
    assert 0 < figures.shown_share < 0.7


def test_fact_in_other_words_does_not_count(workload):
    """The name of a thing alone is no fact: what was said about it has to be there too."""

    def strip_findings(messages):
        shown = []
        for message in messages:
            text = message["content"] or ""
            for step in workload.iter_steps():
                if step.fact is not None:
                    text = text.replace(step.fact.line, step.fact.name)
            shown.append({**message, "content": text or None})
        return shown

    provider = make_provider(workload)
    PlainLoop(provider, workload, strip_findings).run()
    assert 0 < collect(provider).shown_share < 0.7


def test_refused_request_ends_a_turn(workload):
    """Requests over the window are refused and counted, and the answers that never came lack their facts."""
    provider = make_provider(workload, window=8_000)
    PlainLoop(provider, workload).run()
    figures = collect(provider)
    assert figures.refused == len(figures.failures) > 0
    assert not figures.is_complete
    assert figures.shown_share < 1


def test_lost_facts_are_looked_up_afterwards(workload):
    """After the last turn the model looks for what it was not shown; only what the tool finds counts."""

    def show_newest(messages):
        return [message for message in messages if message["role"] == "user"][-1:]

    provider = make_provider(workload, look_up=lambda name: ("recall", {"search": name}))
    loop = PlainLoop(provider, workload, show_newest).run()
    lines = [step.fact.line for step in workload.iter_steps() if step.fact is not None]
    loop.show = lambda messages: [{"role": "user", "content": "Look again."}, *messages[-2:]]
    loop.results = {None: "\n".join(lines[::2])}
    provider.begin_turn(len(workload.turns))
    loop.say("Look again.")
    figures = collect(provider)
    assert figures.probed > 10
    assert 0 < figures.found < figures.probed
    assert figures.shown_share < figures.recallable_share < 1


def test_last_words_are_in_a_call_where_only_a_tool_ends_the_run(workload):
    """An agent with the tool ``final_answer`` gets the last words of a turn, and of the look-ups, as a call of it."""

    class EndingLoop(PlainLoop):
        def say(self, prompt):
            self.messages.append({"role": "user", "content": prompt})
            while True:
                call = self.ask(self.messages, [*TOOLS, final_answer]).parts[-1]
                arguments = json.loads(call.arguments)
                if call.name == "final_answer":
                    self.last_words.append(arguments["answer"])
                    return
                message = {"role": "assistant", "content": None, "tool_calls": [json.loads(bytes(call.raw))]}
                result = self.results.get(arguments.get("argument"), "nothing found")
                self.messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]

    final_answer = {
        "type": "function",
        "function": {"name": "final_answer", "parameters": {"type": "object", "properties": {}}},
    }
    provider = make_provider(workload, look_up=lambda name: ("recall", {"search": name}))
    loop = EndingLoop(provider, workload)
    loop.last_words = []
    loop.run()
    provider.begin_turn(len(workload.turns))
    loop.say("Look again.")
    assert loop.last_words == [*(turn.steps[-1].text for turn in workload.turns), "That is all."]
    figures = collect(provider)
    assert figures.is_complete
    assert figures.seed == workload.seed


def test_summary_is_asked_for_without_tools(workload):
    """A request without tools gets the stand-in's summary, and does not move the script on."""
    provider = make_provider(workload)
    provider.child_pid = os.getpid()
    loop = PlainLoop(provider, workload)
    provider.begin_turn(0)
    prompt = workload.turns[0].prompt
    reply = loop.ask([{"role": "user", "content": f"Summarize:\n{prompt}\nINFO nothing."}], tools=None)
    assert isinstance(reply, ModelAnswer)
    assert workload.turns[0].rule in reply.parts[0].text
    assert (provider.record.answers, provider.record.summaries) == (0, 1)


def ask_as_claude_code(provider, *messages):
    """Send a request of the Messages API with the tools of a server, and return the reply."""
    provider.child_pid = os.getpid()
    tools = [
        {"name": f"mcp__bench__{name}", "input_schema": {"type": "object"}} for name in ("open_file", "run_command")
    ]
    body = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 4_096,
        "tools": tools,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in messages]}],
    }
    return provider.answer(IncomingRequest("anthropic", "generate", json.dumps(body).encode()))


def test_summary_of_claude_code_is_asked_for_with_tools(workload):
    """Its instruction is recognized; its summary is in tags, with the user's rules and none of its own orders."""
    provider = make_provider(workload)
    provider.begin_turn(0)
    instruction = f"CRITICAL: Do NOT call any tools.\n\n{CLAUDE_CODE_INSTRUCTION}, as the user would never."
    stub = "The output is in a file.\n- You MUST read it in chunks."
    reply = ask_as_claude_code(provider, workload.turns[0].prompt, stub, instruction)
    text = reply.parts[0].text
    assert text.startswith("<summary>")
    assert text.endswith("</summary>")
    assert workload.turns[0].rule in text
    assert "MUST" not in text
    assert "tools" not in text
    assert (provider.record.answers, provider.record.summaries) == (0, 1)


def test_calls_have_the_prefix_of_the_framework(workload):
    """The script's tools are called as the framework names them, and the last words of a turn are a text."""
    provider = JudgingProvider(workload, ProviderSettings(window=2_000_000, tokenizer="words"), None, "mcp__bench__")
    provider.begin_turn(0)
    turn = workload.turns[0]
    replies = [ask_as_claude_code(provider, turn.prompt) for _ in turn.steps]
    names = [part.name for reply in replies for part in reply.parts if hasattr(part, "name")]
    assert names == [f"mcp__bench__{step.tool}" for step in turn.steps if step.tool]
    assert replies[-1].parts[0].text == turn.steps[-1].text


def test_programs_that_an_agent_runs_are_counted():
    """The time and memory of a child process are those of the agent too."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert {os.getpid(), child.pid} <= set(list_processes(os.getpid()))
    finally:
        child.communicate(b"\n")


def test_summary_keeps_rules_before_findings_before_names():
    """The stand-in keeps all rules that it sees, whatever else there is."""
    lines = [f"ERROR unit {number}: broken since commit {number:07}a." for number in range(500)]
    summary = write_summary("\n".join(["Never touch a/b.py.", *lines, "Noise here."]))
    assert "Never touch a/b.py." in summary
    assert "commit 0000499a" in summary
    assert "Noise" not in summary
    assert len(summary) < 5_000


def test_comparison_tells_where_another_is_ahead(workload):
    """A remedy that costs less and shows no less is a finding; one that shows less is a reason."""
    provider = make_provider(workload)
    PlainLoop(provider, workload).run()
    figures = collect(provider, "Holdfast", is_ours=True)
    cheaper = change(figures, remedy="cheap", is_ours=False, usd_per_answer=figures.usd_per_answer / 2)
    forgetful = change(cheaper, remedy="forgetful", facts_shown=1)
    assert is_better(cheaper, figures)
    assert not is_better(forgetful, figures)
    assert find_failures([figures, forgetful]) == []
    assert "cheap costs no more" in find_failures([figures, cheaper])[0]
    assert "0.50 times as much, because it keeps less" in explain_behind(figures, [forgetful])[0]
    assert "1 requests of ours were refused" in find_failures([change(figures, refused=1)])[0]


def change(figures, **fields):
    """Return figures with other values."""
    return replace(figures, **fields)
