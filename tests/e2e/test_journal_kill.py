"""A process that works on a real disk is killed at random points: nothing that was acknowledged is lost.

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

KILLS = example_counts.choose(quick=10, ci=20, thorough=200)
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
"""The entries of any one append of the journal, by their letters; nothing is none."""
SCRIPT = Path(__file__).with_name("journal_worker.py")


SAID = journal_worker.messages(STEPS)


@pytest.fixture(scope="module", params=example_counts.spare(journal_worker.GOALS, keep=0))
def api(request):
    """The API that the session speaks to: one without breakpoints for the cache, and one with them."""
    return request.param


@pytest.fixture(scope="module")
def undisturbed(api):
    """The bytes of the request behind so many messages, in a session that nobody kills."""
    journal, bodies = Journal.open(MemoryStore(), SAMPLE_KEY), {}
    steps = journal_worker.onward(journal, SAID, api)

    def request(count):
        while count not in bodies:
            prepared, _ = next(steps)
            if prepared is not None:
                bodies[len(journal.state.history.sized_messages)] = render_prepared_request(prepared)
        return bodies[count]

    return request


@pytest.fixture
def workers(tmp_path, api):
    """A process that starts workers on a store on disk."""
    command = [sys.executable, str(SCRIPT), str(tmp_path / "store.db"), str(STEPS), api]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def killed(workers, random):
    """Start a worker and kill it after some of its words; return the ids that it told before it died."""
    workers.stdin.write("go\n")
    workers.stdin.flush()
    pid = int(workers.stdout.readline().removeprefix("pid "))
    patience, told = random.randrange(12), []
    while (line := workers.stdout.readline().strip()) != "over":
        told.append(line)
        if len(told) == patience + 1:
            time.sleep(random.random() * 0.01)
            with suppress(ProcessLookupError):  # it may have come to its end
                os.kill(pid, signal.SIGKILL)
    return told


def letters(entries):
    """Return the kinds of entries, a letter each."""
    return "".join(LETTERS[type(entry.body).__name__] for entry in entries)


def check(store, acknowledged):
    """nothing-lost, durable-as-promised: what was acknowledged is there, in order, and behind it at most one whole
    append.
    """
    path = store.read_path(SAMPLE_KEY)
    places = {entry.id: place for place, entry in enumerate(path)}
    assert store.get_session(SAMPLE_KEY).entry_count == len(path)
    assert [id_ for id_ in acknowledged if id_ not in places] == []
    found = [places[id_] for id_ in acknowledged]
    assert found == sorted(found)
    last = max(found, default=0)
    last += path[last + 1 : last + 2] != [] and letters(path[last : last + 2]) == "SA"
    assert ONE_APPEND.fullmatch(letters(path[last + 1 :])), letters(path[last:])
    for entry in path:
        for edit in getattr(entry.body, "edits", ()):
            assert not edit.blob_hash or len(store.blobs.read_bytes(edit.blob_hash)) > 0
    return path


@pytest.mark.counts
def test_a_killed_session_goes_on_as_if_nothing_had_happened(workers, tmp_path, undisturbed, api):
    """same-after-restart: after each kill the next request has the bytes of a session that was never disturbed, and so
    to the end.
    """
    random, acknowledged, ends = Random(SEED), [], set()
    for _ in range(KILLS):
        acknowledged += killed(workers, random)
        with SqliteStore(tmp_path / "store.db") as store:
            path = check(store, acknowledged)
            ends.add(letters(path[-2:]))
            journal = Journal.open(store, SAMPLE_KEY)
            assert is_same_request(journal.state, ConversationState.from_entries(path))
            steps = journal_worker.onward(journal, SAID, api)
            at = len(journal.state.history.sized_messages)
            for prepared, ids in steps:
                acknowledged += ids
                if prepared is not None:
                    assert render_prepared_request(prepared) == undisturbed(len(journal.state.history.sized_messages))
                    break
            assert len(journal.state.history.sized_messages) - at <= 2
    assert len(ends) > 1
    assert set("nSADCQ") <= set(letters(path))


def test_what_was_killed_is_spent_to_its_end(workers, tmp_path, api):
    """damage-is-an-error: the lease dies with its holder; whoever comes next works on at once."""
    random = Random(SEED + 1)
    killed(workers, random)
    with SqliteStore(tmp_path / "store.db") as store:
        journal = Journal.open(store, SAMPLE_KEY)
        for number, _ in enumerate(journal_worker.onward(journal, SAID, api)):
            if number == 12:
                break
        assert is_same_request(journal.state, ConversationState.from_entries(store.read_path(SAMPLE_KEY)))
