"""Writers and the server are killed while they work: what was acknowledged is there, and each session is one line."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator

import example_counts
import pytest
from postgres_server import PostgresServer, require_postgres_programs

from holdfast.store.open_store import open_store

ROUNDS = example_counts.choose(quick=3, ci=4, thorough=40)
"""How often the server or a writer is killed."""
SESSIONS = ("one", "two")
WRITERS = 4
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


@pytest.mark.counts
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_acknowledged_appends_survive_kills_of_writers_and_server(own_server: PostgresServer) -> None:
    """nothing-lost, one-writer: after any kill each acknowledged append is in the log, whole, and the log is a line."""
    url = own_server.url()
    with open_store(url) as store:
        for key in SESSIONS:
            store.create_session(key)
    choice = random.Random(ROUNDS)
    outputs: list[str] = []

    def start_writer(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER, url, name, *SESSIONS]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    writers = [start_writer(f"w{number}") for number in range(WRITERS)]
    try:
        for round_ in range(ROUNDS):
            time.sleep(0.5 + choice.random())
            if round_ % 2:
                place = choice.randrange(WRITERS)
                writers[place].kill()
                outputs.append(writers[place].communicate()[0])
                writers[place] = start_writer(f"w{place}r{round_}")
            else:
                own_server.kill()
                own_server.start()
        time.sleep(2)
    finally:
        for writer in writers:
            writer.kill()
            written, errors = writer.communicate()
            outputs.append(written)
            assert "Traceback" not in errors
    check_log(url, outputs)


def check_log(url: str, outputs: list[str]) -> None:
    """Check the logs against the lines in which the writers acknowledged appends of three entries."""
    acknowledged: dict[str, list[list[str]]] = {key: [] for key in SESSIONS}
    for output in outputs:
        # The last line of a killed process may be cut.
        for line in output.splitlines(keepends=True):
            if line.endswith("\n"):
                key, *ids = line.split()
                acknowledged[key].append(ids)
    assert sum(map(len, acknowledged.values())) > ROUNDS
    with open_store(url) as store:
        for key in SESSIONS:
            path_ids = [entry.id for entry in store.read_path(key)]
            assert len(path_ids) == len(store.read_entries(key)) == store.get_session(key).entry_count
            place_by_id = {id_: place for place, id_ in enumerate(path_ids)}
            for ids in acknowledged[key]:
                places = [place_by_id[id_] for id_ in ids]
                assert places == list(range(places[0], places[0] + 3))
            assert len(path_ids) % 3 == 0
            assert store.find_damage(key) == []
