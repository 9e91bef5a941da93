"""The provider of one run: it plays the script, refuses what a provider refuses, and judges what each request shows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Literal

from msgspec import Struct, field

from framework_agents.workload import Workload, list_processes
from holdfast.replay.cache import CacheUse, price_request
from holdfast.replay.recall import StepDependencies
from holdfast.state.target import Prices
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, ProviderReply, RefusalReply, TokenUse
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.provider import JudgedRequest
from holdfast.testing.provider.request_pieces import PromptBlock

SUMMARY_CHARS = 4_000
"""Length of a summary by the stand-in, about what the frameworks ask their models for."""
MAX_PROBES = 30
"""Lost facts that are looked for at the end of a run, evenly chosen."""
CHECK_PROMPT = "Before we close: look up again what you do not see any more."
FINAL_ANSWER_TOOL = "final_answer"
"""The tool with which a run of smolagents ends: it takes an answer without a call for a mistake of the model."""

CLAUDE_CODE_INSTRUCTION = "Your task is to create a detailed summary of the conversation so far"
"""Claude Code asks for its summary with all tools."""
_CLAUDE_CODE_ORDER = re.compile(r"[^\n]*\bMUST\b[^\n]*")

LookUp = Callable[[str], tuple[str, dict[str, Any]]]
"""Makes the call with which the model looks for a name: tool and arguments."""
RequestKind = Literal["answer", "summary", "look-up"]


class RunRecord(Struct):
    """What happened in a run, as the provider saw it."""

    answers: int = 0
    """Answers of the script that were given."""
    refused: int = 0
    first_refusal: str = ""
    summaries: int = 0
    uses: list[tuple[RequestKind, TokenUse]] = field(default_factory=list)
    largest_request: int = 0
    """Tokens of the largest request that was accepted."""
    lost_rules: set[int] = field(default_factory=set)
    """Turns whose rule was missing in a request sent after it was said."""
    facts_needed: int = 0
    facts_shown: int = 0
    lost_facts: list[tuple[int, Any]] = field(default_factory=list)
    """Facts that a request should have shown: the position of the answer, and the reference."""
    probed: int = 0
    found: int = 0
    step_ms: list[float] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Turns that an error ended: how many answers were given by then, and the error."""


class JudgingProvider:
    """The strict provider with the script of a workload, whose requests are judged as they come.

    ``look_up`` makes the calls with which lost facts are looked for after the last turn; None for agents without a
    tool for that. ``tool_prefix`` is what a framework puts before the names of the script's tools.
    """

    def __init__(
        self, workload: Workload, settings: ProviderSettings, look_up: LookUp | None, tool_prefix: str = ""
    ) -> None:
        self.settings = settings
        self.record = RunRecord()
        self.child_pid = 0
        self._workload = workload
        self._provider = Provider(settings, self)
        self._messages = workload.make_messages()
        self._dependencies = StepDependencies(self._messages)
        self._answer_positions = [n for n, message in enumerate(self._messages) if message.role == "assistant"]
        self._look_up = look_up
        self._tool_prefix = tool_prefix
        self._turn = 0
        self._position = 0
        self._is_checking = False
        self._probes: list[tuple[int, Any]] = []
        self._kind: RequestKind = "answer"
        self._last_cpu: float | None = None

    # -- the run -------------------------------------------------------------------------------------------------------

    def begin_turn(self, number: int) -> None:
        """Go to the first answer of a turn, or to the look-ups after the last one."""
        self._turn = number
        self._position = 0
        if number == len(self._workload.turns):
            self._is_checking = True
            lost_facts = self.record.lost_facts
            stride = max(1, len(lost_facts) / MAX_PROBES)
            self._probes = [lost_facts[round(n * stride)] for n in range(min(MAX_PROBES, len(lost_facts)))]

    @property
    def requests(self) -> list[JudgedRequest]:
        """The newest request, which the server reports."""
        return self._provider.requests

    @property
    def has_look_ups(self) -> bool:
        """Whether there is a turn after the last one."""
        return self._look_up is not None

    def answer(self, request: IncomingRequest) -> ProviderReply:
        """Answer a request, and note what it cost and showed."""
        cpu = _read_cpu_ms(self.child_pid)
        self._kind = "answer"
        reply = self._provider.answer(request)
        # Only the newest is kept: the bodies of refused requests may have many megabytes.
        judged_request = self._provider.requests[-1]
        del self._provider.requests[:-1]
        if isinstance(reply, RefusalReply):
            self.record.refused += 1
            self.record.first_refusal = self.record.first_refusal or reply.message[:200]
        elif isinstance(reply, ModelAnswer):
            self.record.uses.append((self._kind, reply.usage))
            self.record.largest_request = max(self.record.largest_request, judged_request.tokens)
            if self._kind == "answer":
                if self._last_cpu is not None:
                    self.record.step_ms.append(cpu - self._last_cpu)
                self._last_cpu = cpu
        return reply

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the next answer of the script, a summary if one is asked for, or the next look-up."""
        texts = [block.rendering.text for block in blocks if block.section != "tools"]
        if not request.body.get("tools") or CLAUDE_CODE_INSTRUCTION in texts[-1]:
            self._kind = "summary"
            self.record.summaries += 1
            return _answer_with_summary(texts)
        if self._is_checking:
            self._kind = "look-up"
            return self._choose_look_up(request, texts)
        steps = self._workload.turns[self._turn].steps
        if self._position >= len(steps):
            # A framework that asks once more after the last words of a turn gets them again.
            return _end_turn(steps[-1].text, request)
        step = steps[self._position]
        self._judge(texts)
        self._position += 1
        self.record.answers += 1
        if not step.tool:
            return _end_turn(step.text, request)
        return ScriptedAnswer(step.text, ((self._tool_prefix + step.tool, {"argument": step.argument}),))

    def _choose_look_up(self, request: ProviderRequest, texts: list[str]) -> ScriptedAnswer:
        if self._position:
            step, reference = self._probes[self._position - 1]
            self.record.probed += 1
            self.record.found += self._is_shown(step, reference, texts)
        if self._position >= len(self._probes) or self._look_up is None:
            return _end_turn("That is all.", request)
        tool, arguments = self._look_up(self._probes[self._position][1][1])
        self._position += 1
        return ScriptedAnswer("", ((tool, arguments),))

    # -- judging -------------------------------------------------------------------------------------------------------

    def _judge(self, texts: list[str]) -> None:
        """Note the rules that the request does not show, and the facts that its answer needs."""
        shown_text = " ".join(" ".join(texts).split())
        for number, turn in enumerate(self._workload.turns[: self._turn + 1]):
            if turn.rule not in shown_text:
                self.record.lost_rules.add(number)
        answers_before = sum(len(turn.steps) for turn in self._workload.turns[: self._turn])
        step = self._answer_positions[answers_before + self._position]
        for outcome in self._dependencies.judge_request(step, texts):
            self.record.facts_shown += outcome.has_fact
            if not outcome.has_fact:
                self.record.lost_facts.append((step, outcome.reference))

    def _is_shown(self, step: int, reference: Any, texts: list[str]) -> bool:
        for outcome in self._dependencies.judge_request(step, texts):
            if outcome.reference == reference:
                return outcome.has_fact
        return False

    @property
    def seed(self) -> int:
        """The seed of the script."""
        return self._workload.seed

    @property
    def script_answers(self) -> int:
        """The answers of the whole script."""
        return len(self._answer_positions)

    def count_needed_facts(self) -> int:
        """Return how many facts the whole script needs, whether or not the run came so far."""
        return sum(len(self._dependencies.get_dependencies(step)) for step in self._answer_positions)


def _end_turn(text: str, request: ProviderRequest) -> ScriptedAnswer:
    """Return the last words of a turn: in a call of the tool for them if the agent has one."""
    for tool in request.body["tools"]:
        if tool.get("function", tool).get("name") == FINAL_ANSWER_TOOL:
            return ScriptedAnswer("", ((FINAL_ANSWER_TOOL, {"answer": text}),))
    return ScriptedAnswer(text)


def _answer_with_summary(texts: list[str]) -> ScriptedAnswer:
    """Return a summary of what a request shows, in the tags that Claude Code asks for if it is a request of its."""
    if CLAUDE_CODE_INSTRUCTION not in texts[-1]:
        return ScriptedAnswer(write_summary("\n".join(texts)))
    # A model would not take for rules of the user what Claude Code itself orders, in capitals, here and where a
    # result is in a file.
    said = _CLAUDE_CODE_ORDER.sub("", "\n".join(texts[:-1]))
    return ScriptedAnswer(f"<summary>\n{write_summary(said)}\n</summary>")


def _read_cpu_ms(pid: int) -> float:
    """Return the processor time of an agent's process and its children in ms, of all their threads."""
    total = 0.0
    for process in list_processes(pid):
        with suppress(OSError):  # a child that ended
            total += time.clock_gettime(~process << 3 | 2) * 1e3  # clock_getcpuclockid(3) of Linux
    return total


# -- figures -----------------------------------------------------------------------------------------------------------


def compute_cost(record: RunRecord, prices: Prices) -> float:
    """Return the cost of a run in dollars, with its summaries and without the look-ups at its end."""
    total = 0.0
    for kind, use in record.uses:
        if kind != "look-up":
            cache_use = CacheUse(use.cache_read, use.cache_write, use.input)
            total += price_request(cache_use, use.output, prices)
    return total


def compute_step_times(record: RunRecord) -> tuple[float, float]:
    """Return the median and the worst processor time of a step in ms."""
    if not record.step_ms:
        return 0.0, 0.0
    return median(record.step_ms), max(record.step_ms)


# -- the model that writes summaries -----------------------------------------------------------------------------------

_RULE = re.compile(r"\b(?:never|must|do not|don't)\b", re.IGNORECASE)
_FINDING = re.compile(r"\b(?:ERROR|FAILED|WARNING|Noted)\b")
_NAME = re.compile(r"[\w-]*\d{4,}[\w-]*|\w+/\w+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\\n|\n+")


def write_summary(prompt: str) -> str:
    """Return what stands in for a model's summary: sentences of the prompt, rules first, then findings, then names.

    It is the same for all frameworks, and kinder to them than many models: it keeps every rule that it is shown, in the
    user's words, and prefers just those lines that later steps may need.
    """
    sentences = list(dict.fromkeys(one.strip() for one in _SENTENCE.split(prompt) if one.strip()))
    chosen: set[int] = set()
    remaining = SUMMARY_CHARS
    # The newest come first within a kind: what was said last is likelier to be of use.
    for pattern in (_RULE, _FINDING, _NAME):
        for number in range(len(sentences) - 1, -1, -1):
            sentence = sentences[number]
            if number in chosen or len(sentence) > min(remaining, 500) or not pattern.search(sentence):
                continue
            chosen.add(number)
            remaining -= len(sentence) + 1
    return "Summary of the work so far:\n" + "\n".join(sentences[number] for number in sorted(chosen))
