"""A day of an agent: steps that are the same for the same numbers, with results of every size among them.

What is measured over a long session is measured over this one: cache stability, recovery, and what each policy costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.testing.provider import Said

STEPS, OVERSIZED, BUDGETS = 300, 40, 6
"""Steps of a whole day; results that are too long by themselves; messages whose results are too long together."""
TURN = 25
"""Steps until the agent has done what it was asked, and the user speaks again."""
PACE, PAUSE = 20, 7_200
"""Seconds between two steps, and those that the user is away for, twice a day."""
LARGE = (60_000, 150_000, 400_000)
"""Characters of the oversized results, in turn; more than 50,000 are spilled by most policies."""
TOGETHER, EACH = 6, 45_000
"""Results of a message that are too long together, and the characters of each; 200,000 are too many in most."""

_TOOLS = ("read", "grep", "bash")
_WORDS = (
    "anchor", "branch", "cache", "commit", "cursor", "decode", "digest", "entry", "fold", "frame", "index", "journal",
    "kelp", "ledger", "lens", "marker", "node", "offset", "parent", "plan", "prefix", "prune", "quota", "record",
    "replay", "request", "result", "retry", "revoke", "ring", "rock", "scope", "seal", "session", "slot", "span",
    "spill", "store", "summary", "tail", "tide", "token", "trace", "turn", "upstream", "usage", "window",
)  # fmt: skip
"""47 words: what lines are made of, each step over them another stride."""


class Step(Struct, frozen=True):
    """One request and what follows it."""

    number: int
    user: str
    """What the user says before it; often nothing."""
    away: int
    """Seconds since the step before."""
    said: Said
    """What the model answers."""
    results: tuple[str, ...]
    """What its calls return, one for each."""


def workday(steps: int = STEPS) -> list[Step]:
    """Return the first ``steps`` steps of a day and, beyond ``STEPS``, of the days after it."""
    return [_step(number) for number in range(steps)]


def tools(api: str) -> list[dict[str, Any]]:
    """Return the tools of the agent as ``api`` takes them."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    told = [{"name": name, "description": f"The tool {name}."} for name in _TOOLS]
    if api == "anthropic":
        return [{**one, "input_schema": schema} for one in told]
    if api == "gemini":
        return [{"functionDeclarations": [{**one, "parameters": schema} for one in told]}]
    if api == "openai-chat":
        return [{"type": "function", "function": {**one, "parameters": schema}} for one in told]
    return [{"type": "function", **one, "parameters": schema} for one in told]


def fields(api: str) -> Mapping[str, Any]:
    """Return the fields beside the messages: tools, the output asked for, and thinking."""
    mine: dict[str, dict[str, Any]] = {
        "anthropic": {"max_tokens": 8_000, "thinking": {"type": "adaptive"}},
        "openai-responses": {"max_output_tokens": 8_000, "reasoning": {"effort": "low"}, "store": False},
        "openai-chat": {"max_completion_tokens": 8_000},
        "gemini": {"generationConfig": {"maxOutputTokens": 8_000, "thinkingConfig": {"includeThoughts": True}}},
    }
    return {"tools": tools(api), **mine[api]}


def spoken(step: Step) -> tuple[Message, ...]:
    """Return a step without a provider: the answer, with ids of its number, and the results of its calls."""
    ids = [f"call_{step.number}_{place}" for place in range(len(step.said.calls))]
    named = [(id_, name) for id_, (name, _) in zip(ids, step.said.calls, strict=True)]
    calls = tuple(ToolCall(id_, name, '{"path":"src/app.py"}') for id_, name in named)
    answer = Message("assistant", (Text(step.said.text or "On it."), *calls))
    return (answer, results(calls, step)) if calls else (answer,)


def results(calls: tuple[ToolCall, ...], step: Step) -> Message:
    """Return the results of a step's calls."""
    texts = zip(calls, step.results, strict=True)
    return Message("tool", tuple(ToolResult(call.id, call.name, (Text(text),)) for call, text in texts))


# -- what a step is ----------------------------------------------------------------------------------------------------


def _step(number: int) -> Step:
    ends = number % TURN == TURN - 1
    user = f"Task {number // TURN}: find why {_line(number)} fails, and mend it." if number % TURN == 0 else ""
    away = PAUSE if number % STEPS in {STEPS // 3, 2 * STEPS // 3} else PACE
    sizes = () if ends else _sizes(number % STEPS)
    calls = tuple(
        (_TOOLS[(number + place) % 3], {"path": f"src/part{number}/{place}.py"}) for place in range(len(sizes))
    )
    text = f"Task {number // TURN} is done: {_line(number + 7)}." if ends else f"Step {number}: {_line(number + 3)}."
    said = Said(text, calls, f"Now {_line(number + 11)}; then {_line(number + 13)}.")
    return Step(number, user, away, said, tuple(_text(number * 10 + place, size) for place, size in enumerate(sizes)))


def _sizes(number: int) -> tuple[int, ...]:
    """Return the characters of the results of a step."""
    if (nth := _nth(number, BUDGETS, 20)) is not None:
        return (EACH,) * (TOGETHER + nth % 2)
    if (nth := _nth(number, OVERSIZED, 3)) is not None:
        return (LARGE[nth % len(LARGE)],)
    return (300 + number * 977 % 4_700,)


def _nth(number: int, count: int, start: int) -> int | None:
    """Return which of ``count`` places, spread over the day from step ``start`` on, ``number`` is; or nothing."""
    apart = (STEPS - start) / count
    nth = round((number - start) / apart)
    place = start + int(nth * apart)
    place += place % TURN == TURN - 1
    return nth if 0 <= nth < count and place == number else None


def _line(seed: int) -> str:
    return _lines()[seed * 7 % len(_lines())]


@cache
def _lines() -> list[str]:
    """Return lines to make texts of: about what code and logs look like."""
    return [
        f"{_word(n, 1)}.{_word(n, 5)}({n * 7_919 % 9_973}) " + " ".join(_word(n, stride) for stride in (7, 11, 13, 17))
        for n in range(997)
    ]


def _word(number: int, stride: int) -> str:
    return _WORDS[(number * stride + number // len(_WORDS)) % len(_WORDS)]


def _text(seed: int, size: int) -> str:
    """Return a text of ``size`` characters in numbered lines."""
    lines, made, length = _lines(), list[str](), 0
    while length < size:
        made.append(f"{len(made) + 1:>5}  {lines[(seed * 31 + len(made) * 17) % len(lines)]}")
        length += len(made[-1]) + 1
    return "\n".join(made)[:size].rstrip()
