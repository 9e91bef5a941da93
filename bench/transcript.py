"""A seeded agent transcript of any length for benchmarks: user turns of tool steps, some with two calls."""

from __future__ import annotations

import json
import random
import string
from typing import Any

WORDS = (
    "cache", "token", "window", "budget", "session", "message", "turn", "tool", "result", "branch", "store", "compact",
    "prune", "replay", "snapshot", "provider", "error", "retry", "lane", "queue", "anchor", "summary", "preview",
    "frozen", "fresh", "prefix", "suffix", "guard", "limit",
)  # fmt: skip
TOOLS = ("read_file", "run_shell", "search", "list_rows")
EXTENSIONS = ("py", "ts", "rs", "md", "json")
STEPS = 6
"""Tool steps in a turn."""


def transcript(messages: int, size: int = 1_000, seed: int = 7) -> list[dict[str, Any]]:
    """Return about ``messages`` Chat messages of about ``size`` characters. All calls have results; a user is last."""
    pick = random.Random(seed)
    out: list[dict[str, Any]] = [{"role": "system", "content": "You are a coding agent. " + _sentence(pick, 120)}]
    while len(out) < messages - STEPS * 3:
        out.append({"role": "user", "content": "Please " + _sentence(pick, size // 8)})
        for _ in range(STEPS):
            out += _step(pick, len(out), size)
        out.append({"role": "assistant", "content": _sentence(pick, size // 8)})
    while len(out) < messages - 1:
        out.append({"role": "user" if len(out) % 2 else "assistant", "content": _sentence(pick, size // 8)})
    return [*out, {"role": "user", "content": "Please continue: " + _sentence(pick, 20)}]


def _step(pick: random.Random, number: int, size: int) -> list[dict[str, Any]]:
    calls = [_call(pick, f"call_{number:06d}_{k}", size) for k in range(2 if pick.random() < 0.2 else 1)]
    answer = {"role": "assistant", "content": _sentence(pick, size // 16), "tool_calls": calls}
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": _body(pick, size)}
        for call in calls
    ]
    return [answer, *results]


def _call(pick: random.Random, id_: str, size: int) -> dict[str, Any]:
    values = {"path": _path(pick), "pattern": _sentence(pick, 5), "why": _sentence(pick, size // 12)}
    return {
        "id": id_,
        "type": "function",
        "function": {"name": pick.choice(TOOLS), "arguments": json.dumps(values)},
    }


def _sentence(pick: random.Random, words: int) -> str:
    return " ".join(pick.choice(WORDS) for _ in range(words)).capitalize() + "."


def _path(pick: random.Random) -> str:
    return f"src/{pick.choice(WORDS)}/{pick.choice(WORDS)}_{pick.randrange(999)}.{pick.choice(EXTENSIONS)}"


def _body(pick: random.Random, size: int) -> str:
    line = pick.choice((_code, _log, _hit, _row))
    out: list[str] = []
    length = 0
    while length < size:
        out.append(line(pick))
        length += len(out[-1])
    return "".join(out)[:size]


def _code(pick: random.Random) -> str:
    name, other = pick.choice(WORDS), pick.choice(WORDS)
    head = f"    def {name}_{pick.randrange(999)}(self, {other}: int) -> str:"
    return f"{head}\n        return self.{other}.get({name!r})\n"


def _log(pick: random.Random) -> str:
    stamp = f"2026-11-{pick.randrange(1, 28):02d}T{pick.randrange(24):02d}:{pick.randrange(60):02d}"
    id_ = "".join(pick.choice(string.hexdigits.lower()) for _ in range(12))
    return f"{stamp} {pick.choice(('INFO', 'INFO', 'WARN', 'ERROR'))} {_sentence(pick, 7)} id={id_}\n"


def _hit(pick: random.Random) -> str:
    return f"{_path(pick)}:{pick.randrange(2000)}:    {_sentence(pick, 8)}\n"


def _row(pick: random.Random) -> str:
    return json.dumps({"id": pick.randrange(10**6), "path": _path(pick), "note": _sentence(pick, 6)}) + ",\n"
