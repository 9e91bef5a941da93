"""A process that works on a real disk is killed at random points: no acknowledged entry is lost.

10 kills, 20 with HOLDFAST_COUNTS=ci, 200 with HOLDFAST_COUNTS=thorough; the seed is fixed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import example_counts
import journal_worker
import pytest
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast.engine.log.journal import Journal
from holdfast.engine.request_template import render_prepared_request
from holdfast.state.conversation_state import ConversationState
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

KILLS = example_counts.choose(quick=10, ci=10, thorough=200)
STEPS = 8 * KILLS
SEED = 15_9
LETTERS = {
    "NoteEntry": "n",
    "MessageEntry": "S",
    "AnswerEntry": "A",
    "RequestSetup": "F",
    "DecisionEntry": "D",
    "CompactionEntry": "C",
    "RequestEntry": "Q",
}
ONE_APPEND = re.compile(r"|n|n?S|SA|F?D?C?Q")
"""The letters of the entries in one append of the journal; the empty alternative is no append."""
SCRIPT = Path(__file__).with_name("journal_worker.py")


MESSAGES = journal_worker.list_day_messages(STEPS)


@pytest.fixture(scope="module", params=example_counts.mark_rest_long(journal_worker.TARGETS, keep=0))
def api(request):
    """Return the session's API: one without cache breakpoints, and one with them."""
    return request.param


@pytest.fixture(scope="module")
def get_undisturbed_body(api):
    """Return a function from a message count to the request body of a session that is never killed."""
    journal, bodies = Journal.open(MemoryStore(), SAMPLE_KEY), {}
    steps = journal_worker.continue_session(journal, MESSAGES, api)

    def request(count):
        while count not in bodies:
            prepared, _ = next(steps)
            if prepared is not None:
                bodies[len(journal.state.history.sized_messages)] = render_prepared_request(prepared)
        return bodies[count]

    return request


@pytest.fixture
def workers(tmp_path, api):
    """Yield a process that starts workers on a store on disk."""
    command = [sys.executable, str(SCRIPT), str(tmp_path / "store.db"), str(STEPS), api]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def run_and_kill_worker(workers, random):
    """Start a worker and kill it after some of its lines; return the ids it wrote."""
    workers.stdin.write("go\n")
    workers.stdin.flush()
    pid = int(workers.stdout.readline().removeprefix("pid "))
    patience, ids = random.randrange(12), []
    while (line := workers.stdout.readline().strip()) != "over":
        ids.append(line)
        if len(ids) == patience + 1:
            time.sleep(random.random() * 0.01)
            with suppress(ProcessLookupError):  # it may have come to its end
                os.kill(pid, signal.SIGKILL)
    return ids


def get_letters(entries):
    """Return the kinds of entries, a letter each."""
    return "".join(LETTERS[type(entry.body).__name__] for entry in entries)


def check_store(store, acknowledged):
    """nothing-lost, durable-as-promised: acknowledged entries are there in order, then at most one whole append."""
    path = store.read_path(SAMPLE_KEY)
    positions_by_id = {entry.id: position for position, entry in enumerate(path)}
    assert store.get_session(SAMPLE_KEY).entry_count == len(path)
    assert [id_ for id_ in acknowledged if id_ not in positions_by_id] == []
    positions = [positions_by_id[id_] for id_ in acknowledged]
    assert positions == sorted(positions)
    last = max(positions, default=0)
    last += path[last + 1 : last + 2] != [] and get_letters(path[last : last + 2]) == "SA"
    assert ONE_APPEND.fullmatch(get_letters(path[last + 1 :])), get_letters(path[last:])
    for entry in path:
        for edit in getattr(entry.body, "edits", ()):
            assert not edit.blob_hash or len(store.blobs.read_bytes(edit.blob_hash)) > 0
    return path


@pytest.mark.counts
def test_journal_requests_are_unchanged_by_kills(workers, tmp_path, get_undisturbed_body, api):
    """same-after-restart: after each kill the next request has the bytes of a session that was never killed, to the
    end.
    """
    random, acknowledged, ends = Random(SEED), [], set()
    for _ in range(KILLS):
        acknowledged += run_and_kill_worker(workers, random)
        with SqliteStore(tmp_path / "store.db") as store:
            path = check_store(store, acknowledged)
            ends.add(get_letters(path[-2:]))
            journal = Journal.open(store, SAMPLE_KEY)
            assert is_same_request(journal.state, ConversationState.from_entries(path))
            steps = journal_worker.continue_session(journal, MESSAGES, api)
            at = len(journal.state.history.sized_messages)
            for prepared, ids in steps:
                acknowledged += ids
                if prepared is not None:
                    assert render_prepared_request(prepared) == get_undisturbed_body(
                        len(journal.state.history.sized_messages)
                    )
                    break
            assert len(journal.state.history.sized_messages) - at <= 2
    if KILLS >= 100:  # on a busy machine ten kills may all fall into planning, which takes most of the time
        assert len(ends) > 1
    assert set("nSADCQ") <= set(get_letters(path))


def test_journal_is_writable_at_once_after_a_kill(workers, tmp_path, api):
    """damage-is-an-error: the lease ends with the process that held it, and the next process writes at once."""
    random = Random(SEED + 1)
    run_and_kill_worker(workers, random)
    with SqliteStore(tmp_path / "store.db") as store:
        journal = Journal.open(store, SAMPLE_KEY)
        for number, _ in enumerate(journal_worker.continue_session(journal, MESSAGES, api)):
            if number == 12:
                break
        assert is_same_request(journal.state, ConversationState.from_entries(store.read_path(SAMPLE_KEY)))
