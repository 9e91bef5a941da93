"""A deterministic long session of an agent: a day of steps with tool results of every size.

Tests and benchmarks use it to measure long sessions: cache stability, recovery, and the cost of each policy.
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
"""Steps of a day, results that are oversized by themselves, and messages whose results are oversized together."""
TURN_STEPS = 25
"""Steps of one turn, after which the agent has finished its task and the user sends the next one."""
STEP_SECONDS, AWAY_SECONDS = 20, 7_200
"""Seconds between two steps, and seconds that the user is away, which happens twice a day."""
LARGE_SIZES = (60_000, 150_000, 400_000)
"""Characters of the oversized results, used in turn; most policies spill results of more than 50,000."""
RESULTS_TOGETHER, RESULT_SIZE = 6, 45_000
"""Results of a message that is over budget, and the characters of each; most policies allow 200,000 in a message."""

_TOOL_NAMES = ("read", "grep", "bash")
_VOCABULARY = (
    "anchor", "branch", "cache", "commit", "cursor", "decode", "digest", "entry", "fold", "frame", "index", "journal",
    "kelp", "ledger", "lens", "marker", "node", "offset", "parent", "plan", "prefix", "prune", "quota", "record",
    "replay", "request", "result", "retry", "revoke", "ring", "rock", "scope", "seal", "session", "slot", "span",
    "spill", "store", "summary", "tail", "tide", "token", "trace", "turn", "upstream", "usage", "window",
)  # fmt: skip
"""The 47 words of the generated lines; each position in a line picks them with another stride."""


class WorkdayStep(Struct, frozen=True):
    """One request with its answer and the results of its calls."""

    number: int
    user: str
    """The user message before the request; empty in most steps."""
    seconds_away: int
    """Seconds since the previous step."""
    answer: ScriptedAnswer
    """The answer of the model."""
    results: tuple[str, ...]
    """The texts of the results, one for each call."""


def make_workday(steps: int = DAY_STEPS) -> list[WorkdayStep]:
    """Return the first ``steps`` steps of a day and, beyond ``DAY_STEPS``, of the days after it."""
    return [_make_step(number) for number in range(steps)]


def make_workday_tools(api: str) -> list[dict[str, Any]]:
    """Return the agent's tool declarations in the form of ``api``."""
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
    """Return the request fields beside the messages: tools, maximum output and thinking."""
    options_by_api: dict[str, dict[str, Any]] = {
        "anthropic": {"max_tokens": 8_000, "thinking": {"type": "adaptive"}},
        "openai-responses": {"max_output_tokens": 8_000, "reasoning": {"effort": "low"}, "store": False},
        "openai-chat": {"max_completion_tokens": 8_000},
        "gemini": {"generationConfig": {"maxOutputTokens": 8_000, "thinkingConfig": {"includeThoughts": True}}},
    }
    return {"tools": make_workday_tools(api), **options_by_api[api]}


def make_step_messages(step: WorkdayStep) -> tuple[Message, ...]:
    """Return the messages of a step without asking a provider: the answer and the results of its calls."""
    ids = [f"call_{step.number}_{place}" for place in range(len(step.answer.calls))]
    call_names = [(id_, name) for id_, (name, _) in zip(ids, step.answer.calls, strict=True)]
    calls = tuple(ToolCall(id_, name, '{"path":"src/app.py"}') for id_, name in call_names)
    answer = Message("assistant", (Text(step.answer.text or "On it."), *calls))
    return (answer, make_result_message(calls, step)) if calls else (answer,)


def make_result_message(calls: tuple[ToolCall, ...], step: WorkdayStep) -> Message:
    """Return the results of a step's calls."""
    texts = zip(calls, step.results, strict=True)
    return Message("tool", tuple(ToolResult(call.id, call.name, (Text(text),)) for call, text in texts))


# -- one step ----------------------------------------------------------------------------------------------------------


def _make_step(number: int) -> WorkdayStep:
    ends_turn = number % TURN_STEPS == TURN_STEPS - 1
    user = (
        f"Task {number // TURN_STEPS}: find why {_get_line(number)} fails, and mend it."
        if number % TURN_STEPS == 0
        else ""
    )
    seconds_away = AWAY_SECONDS if number % DAY_STEPS in {DAY_STEPS // 3, 2 * DAY_STEPS // 3} else STEP_SECONDS
    sizes = () if ends_turn else _choose_result_sizes(number % DAY_STEPS)
    calls = tuple(
        (_TOOL_NAMES[(number + place) % 3], {"path": f"src/part{number}/{place}.py"}) for place in range(len(sizes))
    )
    text = (
        f"Task {number // TURN_STEPS} is done: {_get_line(number + 7)}."
        if ends_turn
        else f"Step {number}: {_get_line(number + 3)}."
    )
    answer = ScriptedAnswer(text, calls, f"Now {_get_line(number + 11)}; then {_get_line(number + 13)}.")
    return WorkdayStep(
        number,
        user,
        seconds_away,
        answer,
        tuple(_make_numbered_text(number * 10 + place, size) for place, size in enumerate(sizes)),
    )


def _choose_result_sizes(number: int) -> tuple[int, ...]:
    """Return the character counts of the results of a step."""
    if (nth := _find_spread_index(number, OVER_BUDGET_MESSAGES, 20)) is not None:
        return (RESULT_SIZE,) * (RESULTS_TOGETHER + nth % 2)
    if (nth := _find_spread_index(number, OVERSIZED_RESULTS, 3)) is not None:
        return (LARGE_SIZES[nth % len(LARGE_SIZES)],)
    return (300 + number * 977 % 4_700,)


def _find_spread_index(number: int, count: int, start: int) -> int | None:
    """Return the index of step ``number`` among ``count`` steps spread over the day from ``start`` on, or None."""
    distance = (DAY_STEPS - start) / count
    nth = round((number - start) / distance)
    spread_step = start + int(nth * distance)
    spread_step += spread_step % TURN_STEPS == TURN_STEPS - 1
    return nth if 0 <= nth < count and spread_step == number else None


def _get_line(seed: int) -> str:
    return _make_lines()[seed * 7 % len(_make_lines())]


@cache
def _make_lines() -> list[str]:
    """Return 997 lines that resemble code and logs."""
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
