"""The inspector's pages while a session is replayed for a comparison: beside nothing, in a process, and in a thread.

Usage: python bench/inspector_compare.py [FILE]

Without a process of its own the replay holds the interpreter, for which every page then waits. The figures are those of
this machine at this time, so compare the three columns, not two runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import uvicorn

from holdfast.config import load_configuration
from holdfast.inspector.app import make_inspector_app
from holdfast.inspector.comparison.replay_job import make_replay_job
from holdfast.inspector.comparison.values import ComparisonQuestion
from holdfast.inspector.server import open_listener
from holdfast.inspector.sources import InspectedStore
from holdfast.planning.presets.registry import PRESETS
from holdfast.reports.sessions.session_replay import replay_recording
from holdfast.store.base import SessionInfo
from holdfast.store.open_store import open_store
from holdfast.store.session_recording import load_branch_recording

EXAMPLE = Path(__file__).parents[1] / "examples" / "long-session.jsonl"
MODEL = "claude-sonnet-4-6"
PAGES = {
    "static page": "/assets/inspector.css",
    "timeline": "/session?id={key}",
    "request": "/request?session={key}&id=200",
}
TIMES = 40
WARM_UP_SECONDS = 3.0
"""Until the replay has begun to make requests."""


class StopReplay(Exception):
    """The measurement is over."""


class StoppableListener:
    """Ends a replay in a thread."""

    def __init__(self) -> None:
        self.stop = Event()

    def begin_part(self, label: str, total: int) -> None:
        """Do nothing."""

    def advance(self) -> None:
        """End the replay if the measurement is over."""
        if self.stop.is_set():
            raise StopReplay


def measure_pages(url: str, key: str) -> dict[str, float]:
    """Return the median milliseconds of each page."""
    figures = {}
    for name, page in PAGES.items():
        times = []
        for _ in range(TIMES):
            started_at = time.perf_counter()
            with urllib.request.urlopen(url + page.format(key=key)) as answer:
                answer.read()
            times.append(1e3 * (time.perf_counter() - started_at))
        figures[name] = statistics.median(times)
    return figures


def measure_beside_process(source: InspectedStore, question: ComparisonQuestion, measure: Callable[[], object]) -> None:
    """Call ``measure`` while the inspector compares."""
    source.comparisons.start(question)
    time.sleep(WARM_UP_SECONDS)
    measure()
    running = source.comparisons.get_running()
    if running is None:
        print("the comparison ended before its pages were measured", file=sys.stderr)
    else:
        source.comparisons.cancel(running.number)


def measure_beside_thread(
    source: InspectedStore, info: SessionInfo, question: ComparisonQuestion, measure: Callable[[], object]
) -> None:
    """Call ``measure`` while a thread of the same process replays."""
    listener = StoppableListener()
    recording = load_branch_recording(source.store, info)

    def replay() -> None:
        with suppress(StopReplay):
            replay_recording(info.key, recording, make_replay_job(question), listener)

    thread = Thread(target=replay)
    thread.start()
    time.sleep(WARM_UP_SECONDS)
    measure()
    listener.stop.set()
    thread.join()


def main() -> int:
    """Serve the file and print the table."""
    file = sys.argv[1] if len(sys.argv) > 1 else str(EXAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        location = str(Path(folder) / "store.db")
        importing = [sys.executable, "-m", "holdfast", "import", file, "--store", location]
        subprocess.run(importing, check=True, stdout=subprocess.DEVNULL)
        with open_store(location, readonly=True) as store, open_listener(0) as listener:
            info = store.list_sessions()[0]
            source = InspectedStore(store, load_configuration(), name=location, location=location)
            question = ComparisonQuestion(info.key, info.leaf_id, tuple(PRESETS), 64_000, MODEL)
            config = uvicorn.Config(make_inspector_app(source), log_level="error", lifespan="off")
            server = uvicorn.Server(config)
            serving = Thread(target=server.run, kwargs={"sockets": [listener]})
            serving.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            columns: list[dict[str, float]] = []

            def measure() -> None:
                columns.append(measure_pages(url, info.key))

            measure_pages(url, info.key)
            measure()
            measure_beside_process(source, question, measure)
            measure_beside_thread(source, info, question, measure)
            server.should_exit = True
            serving.join()
    print(f"{'page, ms (median)':20} {'nothing':>9} {'process':>9} {'thread':>9}")
    for name in PAGES:
        print(f"{name:20} " + " ".join(f"{column[name]:9.1f}" for column in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
