"""The planner in windows of 100,000 to 1,000,000 tokens: time a request, and cost beside never removing anything.

Usage: python bench/large_windows.py [--windows 100000,200000,500000,1000000] [--copies N] [--json] [--check] FILE...

The recordings (sessions of one repository) are joined into one session, ``--copies`` times, with the ids of their calls
renamed: nobody recorded one that fills such a window more than once. It is *constructed*, so it says something about
time and cost, and nothing about recall.

A plan is a *look* when nothing is to be done, an *act* when it compacts; both are means, on a machine that does nothing
else. The larger the window, the rarer the acts, so the time *a step* of every window is weighted with the share of acts
at the smallest: that is the promise, 1.5 times the smallest window's at most. Each window starts with empty caches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec.structs import replace
from planner_caches import clear_planner_caches

from holdfast.config import get_target
from holdfast.formats import read_recording
from holdfast.messages.message import Message
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.pipeline import Policy
from holdfast.replay.cache import SimulatedCache, price_request
from holdfast.replay.measure import MeasurementSettings, SessionStudy, build_cache_request, change_target_window
from holdfast.replay.session import ReplaySession, make_replay_session
from holdfast.replay.simulate import ProviderTokenCounter, simulate_session
from holdfast.replay.tokenizer import get_tokenizer

WINDOWS = (100_000, 200_000, 500_000, 1_000_000)
SETUP_TOKENS = 10_000
GOAL = 1.5
"""Promised ratio of the time a step at the largest window to that at the smallest."""
API, MODEL = "anthropic", "claude-sonnet-4-5"
POLICIES = ("append-only", "claude-code", "opencode", "holdfast")


def join_sessions(sessions: Sequence[ReplaySession], copies: int = 1) -> ReplaySession:
    """Return one session of all ``sessions`` in order, ``copies`` times.

    Ids of calls get the number of their part, so that none occurs twice. Recorded times and usage are left out, since
    those of different parts do not follow each other.
    """
    messages: list[SizedMessage] = []
    steps = []
    for number, session in enumerate([*sessions] * copies):
        for step in session.steps:
            steps.append(replace(step, index=len(messages) + step.index, at=None, usage=None, after_compaction=False))
        messages += [rename_call_ids(sized_message, f"p{number}_") for sized_message in session.messages]
    return ReplaySession(tuple(messages), tuple(steps), sessions[0].model if sessions else "")


def rename_call_ids(sized_message: SizedMessage, prefix: str) -> SizedMessage:
    """Return the message with ``prefix`` before the id of each call and result; itself if it has none."""
    message = sized_message.message
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            parts.append(replace(part, id=prefix + part.id, raw=None))
        elif isinstance(part, ToolResult):
            parts.append(replace(part, call_id=prefix + part.call_id, raw=None))
        else:
            parts.append(part)
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return sized_message
    return build_sized_message(Message(message.role, tuple(parts)))


def make_study(session: ReplaySession, window: int) -> SessionStudy:
    """Prepare ``session`` for a window."""
    target = change_target_window(get_target(API, MODEL), window, SETUP_TOKENS)
    name, counter = get_tokenizer()
    return SessionStudy(session, MeasurementSettings(window, SETUP_TOKENS, target, name, counter))


def measure_window(study: SessionStudy, policy: Policy) -> dict[str, Any]:
    """Return the figures of ``policy`` over the session of ``study``: times in milliseconds, cost in dollars."""
    clear_planner_caches()
    judge = ProviderTokenCounter(study.count_message, SETUP_TOKENS)
    target = study.setting.target
    cache = SimulatedCache(target.cache_rules)
    looks: list[float] = []
    acts: list[float] = []
    usd, peak = 0.0, 0
    for request in simulate_session(study.session, policy, target, judge):
        times_of_kind = looks if request.plan.compaction is None else acts
        times_of_kind.append(request.seconds * 1e3)
        peak = max(peak, request.tokens)
        blocks, breakpoints = build_cache_request(study, request.sized_messages, request.plan)
        use = cache.send_request(blocks, (b"frame", SETUP_TOKENS), breakpoints, None)
        output = study.count_message(study.session.messages[request.step.index])
        usd += price_request(use, output, target.prices)
    times = sorted([*looks, *acts])
    return {
        "window": study.setting.window,
        "policy": policy.name,
        "requests": len(times),
        "acts": len(acts),
        "look_ms": mean(looks) if looks else 0.0,
        "act_ms": mean(acts) if acts else None,
        "p95_ms": times[int(0.95 * len(times))],
        "max_ms": times[-1],
        "tokens_peak": peak,
        "usd": usd,
    }


def add_step_times(rows: list[dict[str, Any]]) -> None:
    """Add ``step_ms``: the time a step if the share of acts were that of the smallest window."""
    smallest = rows[0]
    share = smallest["acts"] / smallest["requests"]
    for row in rows:
        act_ms = row["act_ms"]
        row["step_ms"] = None if act_ms is None else share * act_ms + (1 - share) * row["look_ms"]


def main() -> int:
    """Print the tables; with ``--check``, exit 1 if the ratio is over its goal or could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--windows", default=",".join(map(str, WINDOWS)))
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--policies", default="holdfast", help=f"separated by commas, for example {','.join(POLICIES)}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    sessions = [make_replay_session(read_recording(path.read_bytes()), API) for path in args.files]
    session = join_sessions(sessions, args.copies)
    windows = sorted(int(window) for window in args.windows.split(","))
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in args.policies.split(","):
        policy = Policy.preset(name)
        tables[name] = [measure_window(make_study(session, window), policy) for window in windows]
        add_step_times(tables[name])
    ours = tables.get("holdfast", [])
    ratio = None
    if ours and ours[0]["step_ms"] and ours[-1]["step_ms"]:
        ratio = ours[-1]["step_ms"] / ours[0]["step_ms"]
    if args.json:
        print(json.dumps({"constructed": True, "tables": tables, "ratio": ratio, "goal": GOAL}))
    else:
        print(f"constructed: {len(sessions)} sessions x {args.copies}, {len(session.steps):,} answers")
        print_tables(tables)
        shown = "not measured" if ratio is None else f"{ratio:.2f}"
        print(f"a step at {windows[-1]:,} / at {windows[0]:,}: {shown}   goal {GOAL}")
    return int(args.check and (ratio is None or ratio > GOAL))


def print_tables(tables: dict[str, list[dict[str, Any]]]) -> None:
    """Print a line for each policy and window."""
    heads = ("window", "requests", "acts", "look ms", "act ms", "step ms", "p95 ms", "max ms", "peak", "$")
    print(f"{'policy':<12}" + "".join(f"{head:>11}" for head in heads))
    for name, rows in tables.items():
        for row in rows:
            cells = [f"{row['window']:,}", f"{row['requests']:,}", f"{row['acts']:,}", f"{row['look_ms']:.2f}"]
            cells += ["-" if row[key] is None else f"{row[key]:.2f}" for key in ("act_ms", "step_ms")]
            cells += [f"{row['p95_ms']:.1f}", f"{row['max_ms']:.1f}", f"{row['tokens_peak']:,}", f"{row['usd']:.2f}"]
            print(f"{name:<12}" + "".join(f"{cell:>11}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
