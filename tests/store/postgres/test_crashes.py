"""Writers and the server are killed while they work: what was acknowledged is there, and each session is one line."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import example_counts
import pytest
from postgres_server import PostgresServer, require_postgres_programs

from holdfast.store.open_store import open_store

ROUNDS = example_counts.choose(quick=3, ci=4, thorough=40)
"""How often the server or a writer is killed."""
SESSIONS = ("one", "two")
WRITERS = 4
APPENDS_A_ROUND = 5
"""Appends that are acknowledged before the next kill."""
PROGRESS_SECONDS = 60.0
"""Seconds that these may take on a busy machine, the restart of the server included."""
WRITER = """
import sys
from holdfast.errors import StoreError
from holdfast.state.entries import Entry, NoteEntry
from holdfast.store.open_store import open_store

url, name, *keys = sys.argv[1:]
number = 0
with open_store(url) as store:
    while True:
        key = keys[number % len(keys)]
        ids = [f"{name}-{number}-{part}" for part in range(3)]
        number += 1
        try:
            with store.hold_lease(key):
                parent = store.get_session(key).leaf_id
                entries = []
                for id_ in ids:
                    entries.append(Entry(id_, parent, NoteEntry("x" * 200)))
                    parent = id_
                if store.append_entries(key, entries, onward=True).is_leaf_moved:
                    print(key, *ids, flush=True)
        except StoreError:
            continue
"""


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """Start a server that is not shared: it is killed."""
    with PostgresServer(require_postgres_programs()) as server:
        yield server


class Writers:
    """Processes that append to the sessions and write to files which appends were acknowledged."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started_count = 0
        for _ in range(WRITERS):
            self._start()

    def _start(self) -> None:
        self._started_count += 1
        name = f"w{self._started_count}"
        command = [sys.executable, "-c", WRITER, self._url, name, *SESSIONS]
        with (self._folder / f"{name}.out").open("wb") as out, (self._folder / f"{name}.err").open("wb") as errors:
            self._processes.append(subprocess.Popen(command, stdout=out, stderr=errors))

    def kill_oldest(self) -> None:
        """Kill one of them and start another one."""
        process = self._processes.pop(0)
        process.kill()
        process.wait()
        self._start()

    def kill_all(self) -> None:
        """End the work."""
        for process in self._processes:
            process.kill()
            process.wait()
        for path in self._folder.glob("*.err"):
            assert path.read_text() == ""

    def read_acknowledged(self) -> list[str]:
        """Return the lines of all acknowledged appends; the last line of a killed process may be cut."""
        lines: list[str] = []
        for path in self._folder.glob("*.out"):
            lines += [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return lines

    def wait_for_progress(self) -> None:
        """Wait until more appends were acknowledged: after any kill the work goes on."""
        wanted = len(self.read_acknowledged()) + APPENDS_A_ROUND
        end = time.monotonic() + PROGRESS_SECONDS
        while len(self.read_acknowledged()) < wanted:
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.counts
@pytest.mark.timeout(60 + 20 * ROUNDS)
def test_acknowledged_appends_survive_kills_of_writers_and_server(own_server: PostgresServer, tmp_path: Path) -> None:
    """nothing-lost, one-writer: after any kill each acknowledged append is in the log, whole, and the log is a line."""
    url = own_server.url()
    with open_store(url) as store:
        for key in SESSIONS:
            store.create_session(key)
    choice = random.Random(ROUNDS)
    writers = Writers(url, tmp_path)
    try:
        for round_ in range(ROUNDS):
            writers.wait_for_progress()
            time.sleep(choice.random() / 10)
            if round_ % 2:
                writers.kill_oldest()
            else:
                own_server.kill()
                own_server.start()
        writers.wait_for_progress()
    finally:
        writers.kill_all()
    check_log(url, writers.read_acknowledged())


def check_log(url: str, acknowledged_lines: list[str]) -> None:
    """Check the logs against the lines in which the writers acknowledged appends of three entries."""
    acknowledged: dict[str, list[list[str]]] = {key: [] for key in SESSIONS}
    for line in acknowledged_lines:
        key, *ids = line.split()
        acknowledged[key].append(ids)
    with open_store(url) as store:
        for key in SESSIONS:
            path_ids = [entry.id for entry in store.read_path(key)]
            assert len(path_ids) == len(store.read_entries(key)) == store.get_session(key).entry_count
            assert len(path_ids) % 3 == 0
            place_by_id = {id_: place for place, id_ in enumerate(path_ids)}
            for ids in acknowledged[key]:
                places = [place_by_id[id_] for id_ in ids]
                assert places == list(range(places[0], places[0] + 3))
            assert store.find_damage(key) == []
