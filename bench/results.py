"""The cost of budgets for tool results: time for each of many parallel results, and memory for a huge one.

Usage: python bench/results.py [--json] [--check]

*Time*: ``plan`` over 50, 500 and 5,000 results of 6,000 characters for the calls of one message, about half of which
must be replaced, in one message (as in Anthropic's API) and in a message each (as in Chat): milliseconds for each
result, the best of several runs. If planning is linear, the last figure is hardly more than the first.

*Memory*: a child process plans over one result of 100 MB, stores the blob as a file and reads its end back; another one
appends the result to a session on disk, prepares the request and opens the session again. Their largest resident sizes,
the text itself and the interpreter included.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from sample_conversations import make_text

from holdfast import Message, Plan, Policy, plan
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.state.entries import RequestSetup
from holdfast.store.blobs.blobs import FileBlobStore
from holdfast.store.sqlite import SqliteStore

SIZES = (50, 500, 5_000)
CHARS = 6_000
KEPT = 3_000
"""Budget in characters for each result on average, so that about half of the results must be replaced."""
HUGE = 100_000_000
"""A window in tokens that never fills."""
MOST_RATIO = 3.0
"""A result among 5,000 may cost at most this many times one among 50; with a quadratic step it would be a hundred."""
TEXT = 100_000_000
"""Characters of the result whose memory is measured."""
MOST_MB = 250.0
GOAL = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


def parallel(number: int, apart: bool) -> list[Message]:
    """Return a conversation in which ``number`` calls of one message are answered, in one message or in one each."""
    ids = [f"call_{index}" for index in range(number)]
    results = [ToolResult(id_, "", (Text(make_text(index, CHARS + index % 7)),)) for index, id_ in enumerate(ids)]
    answers = [Message("tool", (one,)) for one in results] if apart else [Message("tool", tuple(results))]
    return [
        Message.from_text("user", "go"),
        Message("assistant", tuple(ToolCall(id_, "read") for id_ in ids)),
        *answers,
    ]


def planned(said: list[Message], number: int) -> Plan:
    """Return the plan of our own policy with a budget that has room for about half of the results."""
    policy = Policy().with_settings(results={"message_chars": number * KEPT, "message_share": 0.0})
    return plan(
        said, get_target("anthropic", "claude-sonnet-4-5", window=HUGE, setup=RequestSetup("bench", 5_000)), policy
    )


def milliseconds(number: int, apart: bool) -> float:
    """Return the time of planning for each of ``number`` results, the best of some runs."""
    said = parallel(number, apart)
    times = []
    for _ in range(max(2, 500 // number)):
        gc.collect()
        began = time.perf_counter()
        made = planned(said, number)
        times.append(time.perf_counter() - began)
        assert number // 3 < len(made.record) < number, f"{len(made.record)} of {number} gave way"
    return min(times) * 1e3 / number


def huge_result() -> dict[str, float]:
    """Plan over one huge result and store it; return the largest resident size after each step, in MB."""
    sizes = {"start": resident()}
    said = huge()
    text = get_result_text(said[-1].results[0])
    sizes["text"] = resident()
    made = plan(said, GOAL)
    sizes["plan"] = resident()
    blob = made.blobs[0]
    with TemporaryDirectory() as folder:
        blobs = FileBlobStore(Path(folder))
        assert blobs.store_content(blob.text) == blob.hash
        sizes["stored"] = resident()
        size = blobs.get_size(blob.hash)
        assert blobs.read_bytes(blob.hash, size - 100, size) == text[-100:].encode()
    sizes["all"] = resident()
    return sizes


def huge() -> list[Message]:
    """Return a conversation that ends in one huge result."""
    text = (make_text(1, 999_999) + "\n") * (TEXT // 1_000_000)
    result = ToolResult("call_0", "read", (Text(text),))
    return [
        Message.from_text("user", "go"),
        Message("assistant", (ToolCall("call_0", "read"),)),
        Message("tool", (result,)),
    ]


def huge_session() -> dict[str, float]:
    """Append one huge result to a session on disk and prepare its request; return the largest resident sizes, in MB."""
    sizes = {"start": resident()}
    said = huge()
    sizes["text"] = resident()
    with TemporaryDirectory() as folder, SqliteStore(Path(folder, "store.db")) as store:
        journal = Journal.open(store, "bench")
        journal.append(*said)
        sizes["appended"] = resident()
        shown = get_result_text(journal.prepare_request(GOAL).messages[-1].message.results[0])
        assert f"{TEXT:,} characters" in shown, shown[:200]
        assert len(list(store.blobs.iter_hashes())) == 1
        sizes["prepared"] = resident()
        Journal.open(store, "bench").prepare_request(GOAL)
    sizes["all"] = resident()
    return sizes


def measured(part: str) -> dict[str, float]:
    """Return the figures of one part of the memory measurement, from a new child process."""
    child = subprocess.run([sys.executable, __file__, "--child", part], capture_output=True, text=True, check=True)
    sizes: dict[str, float] = json.loads(child.stdout)
    return sizes


def resident() -> float:
    """Return the largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


CHILDREN = {"result": huge_result, "session": huge_session}


def main() -> int:
    """Print both parts; with ``--check``, exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child]()))
        return 0
    # The children come first: their largest size begins with that of the process they were forked from.
    memory = {part: measured(part) for part in CHILDREN}
    shapes = {"in one message": False, "a message each": True}
    table = {name: {size: milliseconds(size, apart) for size in SIZES} for name, apart in shapes.items()}
    ratios = {name: row[SIZES[-1]] / row[SIZES[0]] for name, row in table.items()}
    if args.json:
        print(json.dumps({"ms": table, "ratios": ratios, "most_ratio": MOST_RATIO, "mb": memory, "most_mb": MOST_MB}))
    else:
        for name, row in table.items():
            cells = "  ".join(f"{size:,}: {row[size]:.3f} ms" for size in SIZES)
            print(f"{name:<16}{cells}   ratio {ratios[name]:.2f}, goal {MOST_RATIO:.1f}")
        for part, sizes in memory.items():
            steps = "  ".join(f"{name} {size:.0f}" for name, size in sizes.items())
            print(f"{TEXT / 1e6:.0f} MB {part}: largest resident MB after {steps}   goal {MOST_MB:.0f}")
    most = max(sizes["all"] for sizes in memory.values())
    return int(args.check and (max(ratios.values()) > MOST_RATIO or most > MOST_MB))


if __name__ == "__main__":
    sys.exit(main())
