"""The work that every agent of ``bench/frameworks.py`` does: the same user, the same calls, the same results.

An engineer looks for faults in a large service: ten turns of the user, each with a rule of its own, and in each turn
about thirty answers of the model. The answers are a script: they do not depend on what a request shows, so that all
agents have the same conversation. Which facts the model would have needed is known from the script.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from math import exp, log
from pathlib import Path

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult

TURNS = 10
SMALLEST_RESULT = 1_000
LARGEST_RESULT = 2_000_000
"""Characters of the results, the logarithm of which is drawn evenly."""
NOTED_SHARE = 0.5
"""Share of facts that the model says in its own words once it has read them; the others are in the result alone."""
NEED_SHARE = 0.4
"""Share of the calls that use a fact from an earlier result."""
NEED_DISTANCES = (3, 120)
"""How many steps ago the model read the fact that it uses; the logarithm is drawn evenly."""
MODULES = (
    "billing",
    "ledger",
    "search",
    "mailer",
    "gateway",
    "inventory",
    "reports",
    "webhooks",
    "identity",
    "catalog",
)
VERBS = ("compiled", "scheduled", "checked", "loaded", "flushed", "resolved", "queued", "visited", "merged", "released")
NOUNS = ("worker", "buffer", "request", "segment", "handler", "cursor", "session", "socket", "record", "bucket")
TOOL_NAMES = ("open_file", "run_command")


class Fact(Struct, frozen=True):
    """Something that a result says and a later call may use."""

    name: str
    line: str


class Step(Struct, frozen=True):
    """One answer of the model: a call with the result of its tool, or the last words of a turn."""

    text: str
    tool: str = ""
    argument: str = ""
    result_chars: int = 0
    fact: Fact | None = None


class Turn(Struct, frozen=True):
    """What the user says, the rule in it, and the model's answers."""

    prompt: str
    rule: str
    steps: tuple[Step, ...]


class Workload(Struct, frozen=True):
    """The whole script."""

    turns: tuple[Turn, ...]
    seed: int

    def write_results(self, folder: Path) -> None:
        """Write the result of each call to a file, which the tools of the agents read."""
        for number, step in enumerate(self.iter_steps()):
            if step.tool:
                text = make_result(step, random.Random(f"{self.seed} {number}"))
                (folder / get_result_name(step.tool, step.argument)).write_text(text)

    def iter_steps(self) -> Iterator[Step]:
        """Yield the steps of all turns."""
        for turn in self.turns:
            yield from turn.steps

    def make_messages(self) -> list[Message]:
        """Return the conversation for the judge of facts: results have only the lines with facts.

        No other line of a result has a name that the script uses later, so more lines would change nothing.
        """
        messages: list[Message] = []
        number = 0
        for turn in self.turns:
            messages.append(Message("user", (Text(turn.prompt),)))
            for step in turn.steps:
                number += 1
                if not step.tool:
                    messages.append(Message("assistant", (Text(step.text),)))
                    continue
                call = ToolCall(f"call_{number}", step.tool, json.dumps({"argument": step.argument}))
                messages.append(Message("assistant", (Text(step.text), call)))
                shown_line = Text(step.fact.line if step.fact else "ok")
                messages.append(Message("tool", (ToolResult(call.id, step.tool, (shown_line,)),)))
        return messages


def get_result_name(tool: str, argument: str) -> str:
    """Return the name of the file with the result of a call."""
    return blake2b(f"{tool} {argument}".encode(), digest_size=12).hexdigest() + ".txt"


def make_workload(steps: int, seed: int, largest: int = LARGEST_RESULT) -> Workload:
    """Make the script of ``steps`` answers with results of at most ``largest`` characters."""
    rng = random.Random(f"workload {seed}")
    turn_lengths = [steps // TURNS + (number < steps % TURNS) for number in range(TURNS)]
    facts: list[Fact] = []
    turns = []
    number = 0
    for turn_number, length in enumerate(turn_lengths):
        module = MODULES[turn_number % len(MODULES)]
        rule = f"Never touch services/{module}/frozen_{rng.randrange(10_000, 99_999)}.py, whatever the logs say."
        prompt = (
            f"Part {turn_number + 1}: find out why the {module} service drops requests, and note what you find. "
            f"{rule} Its deploy key is kept under ticket OPS-{rng.randrange(100_000, 999_999)}."
        )
        turn_steps = []
        for position in range(length - 1):
            previous_fact = facts[-1] if position else None
            step = _make_call_step(rng, number, module, facts, previous_fact, largest)
            if step.fact is not None:
                facts.append(step.fact)
            turn_steps.append(step)
            number += 1
        turn_steps.append(Step(f"Part {turn_number + 1} is done: the {module} service waits for its own queue."))
        number += 1
        turns.append(Turn(prompt, rule, tuple(turn_steps)))
    return Workload(tuple(turns), seed)


def _make_call_step(
    rng: random.Random, number: int, module: str, facts: list[Fact], previous_fact: Fact | None, largest: int
) -> Step:
    tool = TOOL_NAMES[rng.random() < 0.5]
    target = f"src/{module}/part_{rng.randrange(1_000, 9_999)}_{number}.py"
    argument = target if tool == "open_file" else f"inspect {target}"
    needed_fact = _choose_needed_fact(rng, facts)
    if needed_fact is not None:
        argument = f"{target}?related={needed_fact.name}" if tool == "open_file" else f"{argument} {needed_fact.name}"
    text = f"Step {number + 1}: I look at the {module} service next."
    if previous_fact is not None and rng.random() < NOTED_SHARE:
        text = f"Noted: {previous_fact.line} Now to the next place."
    result_chars = round(exp(rng.uniform(log(SMALLEST_RESULT), log(largest))))
    return Step(text, tool, argument, result_chars, _make_fact(rng, module))


def _choose_needed_fact(rng: random.Random, facts: list[Fact]) -> Fact | None:
    if not facts or rng.random() >= NEED_SHARE:
        return None
    nearest, farthest = NEED_DISTANCES
    distance = round(exp(rng.uniform(log(nearest), log(farthest))))
    return facts[-distance] if distance <= len(facts) else None


def _make_fact(rng: random.Random, module: str) -> Fact:
    """Return a line as logs and code have them, with a name that occurs nowhere else."""
    code = rng.randrange(100_000, 999_999)
    digest = f"{rng.randrange(16**10):010x}a1"
    noun = rng.choice(NOUNS)
    name, line = rng.choice(
        (
            (
                f"{noun}_limit_{code}",
                f"ERROR {module}: the setting {noun}_limit_{code} is lower than its {noun} needs.",
            ),
            (f"TKT-{code}", f"ERROR {module}: {noun} rejected by the upstream, reported before as TKT-{code}."),
            (
                f"conf/{module}/{noun}_{code}.yaml",
                f"WARNING {module}: overrides of the {noun} come from conf/{module}/{noun}_{code}.yaml and win.",
            ),
            (digest, f"FAILED {module}: the {noun} has been broken since commit {digest} was deployed to staging."),
        )
    )
    return Fact(name, line)


def make_result(step: Step, rng: random.Random) -> str:
    """Return the result of a call: lines of a log, with the line of its fact somewhere."""
    lines = []
    chars = 0
    while chars < step.result_chars:
        line = (
            f"INFO {rng.choice(MODULES)} {rng.choice(NOUNS)} {rng.randrange(100)} {rng.choice(VERBS)} the "
            f"{rng.choice(NOUNS)} of {rng.choice(NOUNS)} {rng.randrange(100)} in {rng.randrange(100)} ms"
        )
        lines.append(line)
        chars += len(line) + 1
    if step.fact is not None:
        lines.insert(rng.randrange(len(lines) + 1), step.fact.line)
    return "\n".join(lines)


class ChildJob(Struct):
    """What a child process is told: which agent to build, and where its provider and its results are."""

    framework: str
    remedy: str
    url: str
    results: str
    folder: str
    """An empty folder for what the agent stores."""
    window: int
    model: str
    prompts: list[str]


def list_processes(pid: int) -> list[int]:
    """Return the process of an agent and the programs that it runs: Claude Code is one."""
    processes = [pid]
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that ended
            processes += [int(child) for child in file.read_text().split()]
    return processes
