"""The cost of planning, compared with LangChain's ``trim_messages`` on the same messages in the same run.

Usage: python bench/plan.py [--json] [--check]

Four figures for 100, 1,000 and 10,000 messages of 1,000 characters, each the best of several runs, in processor time:

- *trim*: ``langchain_core.messages.trim_messages`` with its approximate counter, nothing to trim;
- *one more*: ``plan`` after one new message on a known branch, nothing to do;
- *first look*: ``plan`` over unknown messages, nothing to do;
- *acting*: the same with a small window, so that everything old must be compacted.

Compare the ratios: the absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from langchain_core.messages import BaseMessage, convert_to_messages, trim_messages
from langchain_core.messages.utils import count_tokens_approximately
from planner_caches import clear_planner_caches
from transcript import transcript

from holdfast import ConversationState, Message, Plan, plan
from holdfast.config import get_target
from holdfast.providers.requests.message_dicts import decode_messages
from holdfast.state.entries import RequestSetup

SIZES = (100, 1_000, 10_000)
HUGE, SMALL = 100_000_000, 64_000
"""Windows in tokens: one that never fills, and one that does."""
GOALS = {"one more / trim": 1 / 60, "one more / at 1,000": 1.5, "first look / trim": 12.0, "acting / trim": 15.0}
"""Promised ratios at 10,000 messages."""


def best(work: Callable[[], Any], runs: int = 5, before: Callable[[], Any] = lambda: None) -> float:
    """Return the shortest processor time of ``work`` in seconds; ``before`` is not counted."""
    times = []
    for _ in range(runs):
        before()
        gc.collect()
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def plan_for(messages: list[Message], window: int, branch: ConversationState | None = None) -> Plan:
    """Plan for a Chat model with ``window``."""
    return plan(
        messages, get_target("openai-chat", "gpt-5.1", window=window, setup=RequestSetup("bench", 5_000)), state=branch
    )


def one_more(messages: list[Message], rounds: int = 40) -> float:
    """Return the time of planning after one new message on a known branch, the best of many."""
    known = plan_for(messages, HUGE)
    times = []
    for number in range(rounds):
        messages = [*messages, Message.from_text("assistant" if number % 2 == 0 else "user", f"message {number}")]
        began = time.process_time()
        known = plan_for(messages, HUGE, known.state)
        times.append(time.process_time() - began)
    return min(times)


def trim(messages: list[BaseMessage]) -> None:
    """Call ``trim_messages`` with nothing to trim, as before every call of a model."""
    trim_messages(messages, max_tokens=HUGE, token_counter=count_tokens_approximately)


def measure(size: int) -> dict[str, float]:
    """Return the four times in milliseconds for a transcript of ``size`` messages."""
    dicts = transcript(size)
    theirs, ours = convert_to_messages(dicts), decode_messages("openai-chat", dicts)
    acted = plan_for(ours, SMALL)
    assert size < 1_000 or acted.compaction is not None
    seconds = {
        "trim": best(lambda: trim(theirs)),
        "one more": one_more(ours),
        "first look": best(lambda: plan_for(ours, HUGE), 3, clear_planner_caches),
        "acting": best(lambda: plan_for(ours, SMALL), 3, clear_planner_caches),
    }
    return {name: value * 1e3 for name, value in seconds.items()}


def ratios(table: dict[int, dict[str, float]]) -> dict[str, float]:
    """Return the promised ratios at the largest size."""
    large, middle = table[SIZES[-1]], table[SIZES[-2]]
    return {
        "one more / trim": large["one more"] / large["trim"],
        "one more / at 1,000": large["one more"] / middle["one more"],
        "first look / trim": large["first look"] / large["trim"],
        "acting / trim": large["acting"] / large["trim"],
    }


def main() -> int:
    """Print the table; with ``--check``, exit 1 if a ratio is over its goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    table = {size: measure(size) for size in SIZES}
    found = ratios(table)
    if args.json:
        print(json.dumps({"ms": table, "ratios": found, "goals": GOALS}))
    else:
        print(f"{'ms':>10} {'trim':>10} {'one more':>10} {'first look':>11} {'acting':>10}")
        for size, row in table.items():
            cells = (row["trim"], row["one more"], row["first look"], row["acting"])
            print(f"{size:>10,} {cells[0]:>10.2f} {cells[1]:>10.3f} {cells[2]:>11.1f} {cells[3]:>10.1f}")
        for name, value in found.items():
            print(f"{name:<22} {value:8.4f}   goal {GOALS[name]:.4f}   {'ok' if value <= GOALS[name] else 'OVER'}")
    return int(args.check and any(value > GOALS[name] for name, value in found.items()))


if __name__ == "__main__":
    sys.exit(main())
