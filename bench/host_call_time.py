"""How long a plugin waits for one compaction: a new process, and a server that is running.

Usage: python bench/host_call_time.py [--megabytes 3] [--runs 5] [--json] [--check] [FILE…]

The transcript is a recorded session (FILE, else ``examples/long-session.jsonl``), repeated until it has as many
megabytes as JSON, with the ids of its calls renamed and a word of each run in every text: no run can use what an
earlier one has found out. Measured in one run, medians:

- ``python -c pass``: what any process of Python costs here;
- ``holdfast compact --stdin``: from the start of the process to its end, with the transcript through pipes;
- ``POST /v1/compact`` of a running ``holdfast serve``: from the first byte sent to the last one read;
- *again*: the same transcript once more, as where a user compacts twice, or asks for the extract and then takes it.

``--check`` exits 1 if the process takes ``MOST_PROCESS_SECONDS`` or the server ``MOST_SERVER_SECONDS`` or longer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from child_processes import LOOPBACK, holdfast
from host_policies import build_transcript
from large_windows import join_sessions

from holdfast.formats import read_recording
from holdfast.replay.session import ReplaySession, make_replay_session

EXAMPLE = Path(__file__).parents[1] / "examples" / "long-session.jsonl"
MOST_PROCESS_SECONDS, MOST_SERVER_SECONDS = 1.0, 0.150
NO_UPSTREAM = f"http://{LOOPBACK}:9"
"""Nobody answers there, and nobody is asked."""
MAX_COPIES = 50


def make_transcript(sessions: Sequence[ReplaySession], size: int, word: str) -> bytes:
    """Return a transcript of at least ``size`` bytes in which every text has ``word``."""
    for copies in range(1, MAX_COPIES):
        messages = join_sessions(sessions, copies).messages
        transcript = build_transcript(messages, window=1_000_000)
        data = json.dumps(_mark_texts(transcript, word)).encode()
        if len(data) >= size:
            return data
    raise SystemExit(f"{MAX_COPIES} copies of the session have less than {size:,} bytes; give a longer one")


def _mark_texts(transcript: dict[str, Any], word: str) -> dict[str, Any]:
    for message in transcript["messages"]:
        for part in (message, *message.get("toolResults", [])):
            if part["text"]:
                part["text"] += f"\n{word}"
    return transcript


def time_call(call: Callable[[], bytes]) -> float:
    """Return the seconds of a call that must have compacted its transcript."""
    started_at = time.perf_counter()
    answer = call()
    seconds = time.perf_counter() - started_at
    assert "why" not in json.loads(answer), json.loads(answer)["why"]
    return seconds


def run_process(data: bytes) -> bytes:
    """Return what ``holdfast compact --stdin`` prints."""
    command = [sys.executable, "-m", "holdfast", "compact", "--stdin"]
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout


def ask_server(port: int, data: bytes) -> bytes:
    """Return the answer of a running server."""
    connection = HTTPConnection(LOOPBACK, port, timeout=60)
    connection.request("POST", "/v1/compact", data, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert response.status == 200, answer[:200]
    return answer


def measure(sessions: Sequence[ReplaySession], size: int, runs: int) -> dict[str, float]:
    """Return the median seconds of each kind of call."""
    transcripts = [make_transcript(sessions, size, f"run_{number}") for number in range(runs)]
    empty: list[float] = []
    for _ in range(runs):
        started_at = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        empty.append(time.perf_counter() - started_at)
    processes = [time_call(lambda data=data: run_process(data)) for data in transcripts]  # type: ignore[misc]
    with TemporaryDirectory() as folder, holdfast(NO_UPSTREAM, Path(folder, "store.db")) as server:
        first = [time_call(lambda data=data: ask_server(server.port, data)) for data in transcripts]  # type: ignore[misc]
        again = [time_call(lambda: ask_server(server.port, transcripts[-1])) for _ in range(runs)]
    return {
        "bytes": float(len(transcripts[0])),
        "empty_process": median(empty),
        "process": median(processes),
        "server": median(first),
        "server_first_call": first[0],
        "server_again": median(again),
    }


def main() -> int:
    """Print the figures; with ``--check``, exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", default=[EXAMPLE])
    parser.add_argument("--megabytes", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    sessions = [make_replay_session(read_recording(file.read_bytes()), "anthropic") for file in args.files]
    figures = measure(sessions, int(args.megabytes * 1e6), args.runs)
    if args.json:
        print(json.dumps(figures))
    else:
        print(f"a transcript of {figures['bytes'] / 1e6:.1f} MB, medians of {args.runs}")
        print(f"python -c pass            {figures['empty_process'] * 1e3:7.0f} ms")
        print(f"holdfast compact --stdin  {figures['process'] * 1e3:7.0f} ms   goal under {MOST_PROCESS_SECONDS:.0f} s")
        goal = f"goal under {MOST_SERVER_SECONDS * 1e3:.0f} ms"
        print(f"POST /v1/compact          {figures['server'] * 1e3:7.0f} ms   {goal}")
        print(f"  the very first call     {figures['server_first_call'] * 1e3:7.0f} ms")
        print(f"  the same once more      {figures['server_again'] * 1e3:7.0f} ms")
    is_missed = figures["process"] >= MOST_PROCESS_SECONDS or figures["server"] >= MOST_SERVER_SECONDS
    return int(args.check and is_missed)


if __name__ == "__main__":
    sys.exit(main())
