"""The inspector's first screens of a large session, beside a static page of the same server.

Usage: python bench/inspector.py [--messages N] [--megabytes N] [--sessions N] [--json]

Writes a session of that size into a store, serves it, and asks for each page once in a fresh process (cold) and five
times more (warm, median). With ``--sessions`` it measures instead the list of so many sessions, sorted by a figure: its
first answer, all figures, another page in the meantime, and the list once all are known.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import AnswerEntry, CompactionEntry, Entry, EntryBody, MessageEntry, RequestEntry, Usage
from holdfast.store.base import SessionInfo
from holdfast.store.open_store import open_store

MODEL = "claude-sonnet-4-6"
STEPS_BETWEEN_COMPACTIONS = 8
"""So that a request has what fits into a window of 200,000 tokens, as every real one has."""
PAGES = {
    "static page": "/assets/inspector.css",
    "sessions": "/",
    "timeline": "/session?id=large",
    "first requests": "/session?id=large&request=1",
    "request": "/request?session=large&id={last}",
    "message": "/message?session=large&id=0",
    "raw body": "/raw?session=large&id={last}",
    "range": "/session?id=large&from=100&to=140",
}
REQUESTS_OF_MANY = 60
"""Requests of each session of ``--sessions``."""


def write_store(path: str, messages: int, megabytes: int) -> int:
    """Write a session of that many messages and bytes; return how many requests it has."""
    steps = messages // 2
    characters = megabytes * 1_000_000 // steps
    line = "2026-11-30T12:00:00Z GET /orders/{} 200 {} ms\n"
    parent: str | None = None
    with open_store(path) as store:
        store.create_session("large", SessionInfo("large", title="A large session", model=MODEL))
        for step in range(steps):
            text = "".join(line.format(step * 1_000 + number, number % 97) for number in range(characters // 46))
            bodies: list[EntryBody] = [
                RequestEntry(f"digest-{step}", 2 * step, MODEL, 200_000),
                AnswerEntry(f"digest-{step}", Usage(1_000 + step % 150_000, 50, step % 150_000, 1_000)),
                MessageEntry(build_sized_message(Message("assistant", (ToolCall(f"c{step}", "read", "{}"),)))),
                MessageEntry(build_sized_message(Message("tool", (ToolResult(f"c{step}", "read", (Text(text),)),)))),
            ]
            if step and step % STEPS_BETWEEN_COMPACTIONS == 0:
                summary = Message("user", (Text("A summary of what was said before.\n" * 200),))
                bodies.insert(0, CompactionEntry(2 * step - 4, summary, 2_000, (), 160_000, 40_000))
            entries = []
            for place, body in enumerate(bodies):
                entry = Entry(f"{step:06x}{place:02x}", parent, body, time_ms=1_780_000_000_000 + 1_000 * step)
                entries.append(entry)
                parent = entry.id
            store.append_entries("large", entries)
    return steps


def write_sessions(path: str, count: int) -> None:
    """Write so many sessions of ``REQUESTS_OF_MANY`` requests."""
    with open_store(path) as store:
        for number in range(count):
            key = f"session-{number:05}"
            store.create_session(key, SessionInfo(key, title=f"Session {number}", model=MODEL))
            parent: str | None = None
            entries = []
            for step in range(REQUESTS_OF_MANY):
                bodies: list[EntryBody] = [
                    MessageEntry(build_sized_message(Message("user", (Text(f"Step {step} of {number}. " * 40),)))),
                    RequestEntry(f"digest-{step}", step + 1, MODEL, 200_000),
                    AnswerEntry(f"digest-{step}", Usage(1_000 + 100 * step + number, 50, 100 * step, 1_000)),
                ]
                for place, body in enumerate(bodies):
                    entries.append(Entry(f"{step:04x}{place:02x}-{number:05}", parent, body))
                    parent = entries[-1].id
            store.append_entries(key, entries)


def measure_sorted_list(path: str) -> dict[str, float]:
    """Return the milliseconds until a sorted list is there, until it is complete, and of a page in the meantime."""
    command = [sys.executable, "-m", "holdfast", "inspect", "--store", path, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = re.sub(r"/$", "", json.loads(server.stdout.readline())["url"])

        def get(page: str) -> tuple[float, str]:
            began = time.perf_counter()
            with urllib.request.urlopen(url + page, timeout=120) as answer:
                text = answer.read().decode()
            return 1_000 * (time.perf_counter() - began), text

        began = time.perf_counter()
        first, text = get("/?sort=cost")
        with ThreadPoolExecutor(1) as other:
            page_times = []
            while "data-complete" in text:
                waiting = other.submit(get, "/?sort=cost&complete=1")
                while not waiting.done():
                    page_times.append(get("/session?id=session-00001")[0])
                text = waiting.result()[1]
        complete = 1_000 * (time.perf_counter() - began)
        again = statistics.median(get("/?sort=tokens&page=3")[0] for _ in range(5))
        server.terminate()
    return {
        "first answer": first,
        "complete": complete,
        "slowest page meanwhile": max(page_times, default=0.0),
        "sorted again": again,
    }


def measure(path: str, last: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each page, cold and warm, and the bytes it has."""
    figures = {}
    for name, page in PAGES.items():
        command = [sys.executable, "-m", "holdfast", "inspect", "--store", path, "--port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = re.sub(r"/$", "", json.loads(server.stdout.readline())["url"])
            times = []
            size = 0
            for _ in range(6):
                began = time.perf_counter()
                with urllib.request.urlopen(url + page.format(last=last), timeout=120) as answer:
                    size = len(answer.read())
                times.append(1_000 * (time.perf_counter() - began))
            server.terminate()
        figures[name] = {"cold": times[0], "warm": statistics.median(times[1:]), "bytes": size}
    return figures


def main() -> int:
    """Write the session, measure the pages and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--sessions", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.sessions:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "store.db")
            write_sessions(path, args.sessions)
            times = measure_sorted_list(path)
        if args.json:
            print(json.dumps(times, indent=1))
            return 0
        print(f"{args.sessions:,} sessions of {REQUESTS_OF_MANY} requests, the list sorted by cost")
        for name, milliseconds in times.items():
            print(f"{name:<24}{milliseconds:>8.0f} ms")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "store.db")
        last = write_store(path, args.messages, args.megabytes)
        figures = measure(path, last)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1_000
    if args.json:
        print(json.dumps({"pages": figures, "largest_process_mb": memory}, indent=1))
        return 0
    print(f"{args.messages:,} messages, {args.megabytes} MB; the largest server process took {memory} MB")
    print(f"{'page':<16}{'cold ms':>10}{'warm ms':>10}{'kB':>8}{'warm, static page = 1':>24}")
    static = figures["static page"]["warm"]
    for name, row in figures.items():
        ratio = row["warm"] / static
        print(f"{name:<16}{row['cold']:>10.0f}{row['warm']:>10.1f}{row['bytes'] / 1_000:>8.0f}{ratio:>24.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
