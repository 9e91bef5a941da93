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
from holdfast.testing.provider import ScriptedAnswer

DAY_STEPS, OVERSIZED_RESULTS, OVER_BUDGET_MESSAGES = 300, 40, 6
"""Steps of a whole day; results that are too long by themselves; messages whose results are too long together."""
TURN_STEPS = 25
"""Steps until the agent has done what it was asked, and the user speaks again."""
STEP_SECONDS, AWAY_SECONDS = 20, 7_200
"""Seconds between two steps, and those that the user is away for, twice a day."""
LARGE_SIZES = (60_000, 150_000, 400_000)
"""Characters of the oversized results, in turn; more than 50,000 are spilled by most policies."""
RESULTS_TOGETHER, RESULT_SIZE = 6, 45_000
"""Results of a message that are too long together, and the characters of each; 200,000 are too many in most."""

_TOOL_NAMES = ("read", "grep", "bash")
_VOCABULARY = (
    "anchor", "branch", "cache", "commit", "cursor", "decode", "digest", "entry", "fold", "frame", "index", "journal",
    "kelp", "ledger", "lens", "marker", "node", "offset", "parent", "plan", "prefix", "prune", "quota", "record",
    "replay", "request", "result", "retry", "revoke", "ring", "rock", "scope", "seal", "session", "slot", "span",
    "spill", "store", "summary", "tail", "tide", "token", "trace", "turn", "upstream", "usage", "window",
)  # fmt: skip
"""47 words: what lines are made of, each step over them another stride."""


class WorkdayStep(Struct, frozen=True):
    """One request and what follows it."""

    number: int
    user: str
    """What the user says before it; often nothing."""
    seconds_away: int
    """Seconds since the step before."""
    answer: ScriptedAnswer
    """What the model answers."""
    results: tuple[str, ...]
    """What its calls return, one for each."""


def make_workday(steps: int = DAY_STEPS) -> list[WorkdayStep]:
    """Return the first ``steps`` steps of a day and, beyond ``DAY_STEPS``, of the days after it."""
    return [_make_step(number) for number in range(steps)]


def make_workday_tools(api: str) -> list[dict[str, Any]]:
    """Return the tools of the agent as ``api`` takes them."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    declarations = [{"name": name, "description": f"The tool {name}."} for name in _TOOL_NAMES]
    if api == "anthropic":
        return [{**declaration, "input_schema": schema} for declaration in declarations]
    if api == "gemini":
        return [{"functionDeclarations": [{**declaration, "parameters": schema} for declaration in declarations]}]
    if api == "openai-chat":
        return [{"type": "function", "function": {**declaration, "parameters": schema}} for declaration in declarations]
    return [{"type": "function", **declaration, "parameters": schema} for declaration in declarations]


def make_request_fields(api: str) -> Mapping[str, Any]:
    """Return the fields beside the messages: tools, the output asked for, and thinking."""
    options_by_api: dict[str, dict[str, Any]] = {
        "anthropic": {"max_tokens": 8_000, "thinking": {"type": "adaptive"}},
        "openai-responses": {"max_output_tokens": 8_000, "reasoning": {"effort": "low"}, "store": False},
        "openai-chat": {"max_completion_tokens": 8_000},
        "gemini": {"generationConfig": {"maxOutputTokens": 8_000, "thinkingConfig": {"includeThoughts": True}}},
    }
    return {"tools": make_workday_tools(api), **options_by_api[api]}


def make_step_messages(step: WorkdayStep) -> tuple[Message, ...]:
    """Return a step without a provider: the answer, with ids of its number, and the results of its calls."""
    ids = [f"call_{step.number}_{place}" for place in range(len(step.answer.calls))]
    call_names = [(id_, name) for id_, (name, _) in zip(ids, step.answer.calls, strict=True)]
    calls = tuple(ToolCall(id_, name, '{"path":"src/app.py"}') for id_, name in call_names)
    answer = Message("assistant", (Text(step.answer.text or "On it."), *calls))
    return (answer, make_result_message(calls, step)) if calls else (answer,)


def make_result_message(calls: tuple[ToolCall, ...], step: WorkdayStep) -> Message:
    """Return the results of a step's calls."""
    texts = zip(calls, step.results, strict=True)
    return Message("tool", tuple(ToolResult(call.id, call.name, (Text(text),)) for call, text in texts))


# -- what a step is ----------------------------------------------------------------------------------------------------


def _make_step(number: int) -> WorkdayStep:
    ends = number % TURN_STEPS == TURN_STEPS - 1
    user = (
        f"Task {number // TURN_STEPS}: find why {_get_line(number)} fails, and mend it."
        if number % TURN_STEPS == 0
        else ""
    )
    away = AWAY_SECONDS if number % DAY_STEPS in {DAY_STEPS // 3, 2 * DAY_STEPS // 3} else STEP_SECONDS
    sizes = () if ends else _choose_result_sizes(number % DAY_STEPS)
    calls = tuple(
        (_TOOL_NAMES[(number + place) % 3], {"path": f"src/part{number}/{place}.py"}) for place in range(len(sizes))
    )
    text = (
        f"Task {number // TURN_STEPS} is done: {_get_line(number + 7)}."
        if ends
        else f"Step {number}: {_get_line(number + 3)}."
    )
    answer = ScriptedAnswer(text, calls, f"Now {_get_line(number + 11)}; then {_get_line(number + 13)}.")
    return WorkdayStep(
        number,
        user,
        away,
        answer,
        tuple(_make_numbered_text(number * 10 + place, size) for place, size in enumerate(sizes)),
    )


def _choose_result_sizes(number: int) -> tuple[int, ...]:
    """Return the characters of the results of a step."""
    if (nth := _find_spread_index(number, OVER_BUDGET_MESSAGES, 20)) is not None:
        return (RESULT_SIZE,) * (RESULTS_TOGETHER + nth % 2)
    if (nth := _find_spread_index(number, OVERSIZED_RESULTS, 3)) is not None:
        return (LARGE_SIZES[nth % len(LARGE_SIZES)],)
    return (300 + number * 977 % 4_700,)


def _find_spread_index(number: int, count: int, start: int) -> int | None:
    """Return which of ``count`` places, spread over the day from step ``start`` on, ``number`` is; or nothing."""
    apart = (DAY_STEPS - start) / count
    nth = round((number - start) / apart)
    place = start + int(nth * apart)
    place += place % TURN_STEPS == TURN_STEPS - 1
    return nth if 0 <= nth < count and place == number else None


def _get_line(seed: int) -> str:
    return _make_lines()[seed * 7 % len(_make_lines())]


@cache
def _make_lines() -> list[str]:
    """Return lines to make texts of: about what code and logs look like."""
    return [
        f"{_pick_word(n, 1)}.{_pick_word(n, 5)}({n * 7_919 % 9_973}) "
        + " ".join(_pick_word(n, stride) for stride in (7, 11, 13, 17))
        for n in range(997)
    ]


def _pick_word(number: int, stride: int) -> str:
    return _VOCABULARY[(number * stride + number // len(_VOCABULARY)) % len(_VOCABULARY)]


def _make_numbered_text(seed: int, size: int) -> str:
    """Return a text of ``size`` characters in numbered lines."""
    lines, numbered_lines, length = _make_lines(), list[str](), 0
    while length < size:
        numbered_lines.append(
            f"{len(numbered_lines) + 1:>5}  {lines[(seed * 31 + len(numbered_lines) * 17) % len(lines)]}"
        )
        length += len(numbered_lines[-1]) + 1
    return "\n".join(numbered_lines)[:size].rstrip()
