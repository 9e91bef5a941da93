"""A process that works with an engine on a real disk is killed at random points, and the next one goes on.

10 kills in one API, 10 more in another with ``-m long``, 500 with HOLDFAST_COUNTS=thorough (``-s`` shows where they
struck); the seed is fixed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import engine_worker as worker_script
import example_counts
import pytest
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast.engine.log.queued_messages import decode_queued_messages
from holdfast.messages.message import Message
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.state.codec.packing import unpack_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, MessageEntry
from holdfast.store.blobs.blob_names import NOTE_CAPPED
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import run_on_fake_clock as on_fake_clock
from holdfast.testing.provider.calls import ModelAnswer

SESSIONS, KILLS = example_counts.choose(quick=(1, 10), ci=(1, 10), thorough=(10, 25))
"""Sessions of each API, and the kills in each."""
VERBS_AFTER_KILL = 4
"""Verbs that the next engine does after each kill."""
SEED = 15_10
APIS = ("anthropic", "openai-responses")
WRITERS = ("extract", "model")
KILL_AFTER = ("", "", "~CompactionStarted", "~interrupt", "~RequestStarted")
"""The beginning of the line after which a kill comes; an empty one allows any line."""
MAX_KILL_DELAY = 0.012
"""Seconds after that line at most: about the duration of a verb."""
SCRIPT = Path(__file__).with_name("engine_worker.py")


@pytest.fixture(scope="module")
def workers():
    """Yield a process that starts workers."""
    command = [sys.executable, str(SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def run_and_kill_worker(workers, store_path, api, random):
    """Start a worker and kill it after some of its lines; return the lines it wrote."""
    workers.stdin.write(f"{store_path} {api} {random.choice(WRITERS)}\n")
    workers.stdin.flush()
    pid = int(workers.stdout.readline().removeprefix("pid "))
    patience, aim, lines, is_hit = random.randrange(40), random.choice(KILL_AFTER), [], False
    while (line := workers.stdout.readline().strip()) != "over":
        lines.append(line)
        if not is_hit and len(lines) > patience and line.startswith(aim):
            is_hit = True
            time.sleep(random.random() * MAX_KILL_DELAY)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return lines


# -- what must hold ----------------------------------------------------------------------------------------------------


def list_messages(path):
    return [entry.body.sized_message.message for entry in path if isinstance(entry.body, MessageEntry)]


def list_named_blobs(body):
    """Return the stored texts that an entry refers to."""
    named = body.data["blobs"] if getattr(body, "reason", "") == NOTE_CAPPED else []
    return [*named, *(edit.blob_hash for edit in getattr(body, "edits", ()) if edit.blob_hash)]


def check_store(store, acknowledged, since=0):
    """nothing-lost: each acknowledged entry is stored once; text-before-entry: so are its texts;
    compaction-is-one-record: a compaction is complete or absent.
    """
    path = store.read_path(SAMPLE_KEY)
    entry_counts = Counter(entry.id for entry in path)
    assert [id_ for id_ in acknowledged if entry_counts[id_] != 1] == []
    assert len(store.read_tips(SAMPLE_KEY)) == 1
    assert store.get_session(SAMPLE_KEY).entry_count == len(path)
    assert is_same_request(store.open_state(SAMPLE_KEY), ConversationState.from_entries(path))
    for entry in path[since:]:
        if isinstance(entry.body, CompactionEntry):
            assert entry.body.tokens_after < entry.body.tokens_before
            assert [
                heading
                for heading in SUMMARY_HEADINGS
                if entry.body.author and f"## {heading}" not in entry.body.summary.text
            ] == []
        assert all(store.blobs.get_size(blob) for blob in list_named_blobs(entry.body))
    return path


def check_queued_messages(store, path):
    """queued-input-once: a message that waited for an answer is in the log by now, once."""
    assert decode_queued_messages(store.open_state(SAMPLE_KEY), SAMPLE_KEY) == []
    texts = Counter(message.text for message in list_messages(path) if message.role == "user")
    queued_texts = [unpack_value(entry.body.raw, Message).text for entry in path if worker_script.is_queued(entry.body)]
    assert [text for text in queued_texts if texts[text] != 1] == []
    assert max(texts.values()) == 1


def check_day(messages):
    """No step is lost or repeated, whichever process did it: each answer in turn, with its own results."""
    answers = [message for message in messages if message.role == "assistant"]
    steps = [worker_script.get_step(number) for number in range(len(answers))]
    assert [answer.text for answer in answers] == [step.answer.text for step in steps]
    results = [result.content[0].text for message in messages for result in message.results]
    assert results == [text for step in steps for text in step.results][: len(results)]
    assert sum(len(step.results) for step in steps[:-1]) <= len(results)


def continue_in_process(store_path, api, writer="extract", steps=VERBS_AFTER_KILL):
    """Do some verbs with an engine of this process, and return the acknowledged ids."""
    printed = []
    provider = on_fake_clock(
        partial(worker_script.work, str(store_path), api, writer, steps, lambda *lines: printed.extend(lines))
    )
    assert worker_script.list_wrong_refusals(provider) == []
    assert isinstance(provider.requests[-1].reply, ModelAnswer)
    return printed


def list_ids(lines):
    return [line for line in lines if not line.startswith("~")]


# -- the kills ---------------------------------------------------------------------------------------------------------


@pytest.mark.counts
@pytest.mark.timeout(3_600 if example_counts.IS_THOROUGH else 120)
@pytest.mark.parametrize("api", example_counts.mark_rest_long(APIS, keep=0))
def test_engine_goes_on_after_each_kill(workers, tmp_path, api):
    """nothing-lost, text-before-entry, one-writer, compaction-is-one-record, queued-input-once: after each kill the
    session opens at once, whole, and a new engine goes on.
    """
    random, table = Random(f"{SEED} {api}"), Counter()
    for number in range(SESSIONS):
        path = kill_workers_repeatedly(workers, tmp_path / f"{number}.db", api, random, table)
        check_day(list_messages(path))
        authors = [entry.body.author for entry in path if isinstance(entry.body, CompactionEntry)]
        assert authors
        table["in all", "entries"] += len(path)
        table.update(("in all", f"compactions by {by or 'extract'}") for by in authors)
    if SESSIONS > 1:  # ten kills of one session may all fall into planning or into the call of a model
        assert sum(when == "killed at" for when, _ in table) >= 4
    print_kill_table(api, table)


def kill_workers_repeatedly(workers, store_path, api, random, table):
    """Kill one worker after the other in one session; return its log."""
    acknowledged, since = [], 0
    for _ in range(KILLS):
        lines = run_and_kill_worker(workers, store_path, api, random)
        assert [line for line in lines if line.startswith("~wrong")] == []
        acknowledged += list_ids(lines)
        table["killed at", lines[-1] if lines and lines[-1].startswith("~") else "an acknowledgement"] += 1
        if store_path.exists():
            with SqliteStore(store_path) as store:
                if store.list_sessions():
                    path = check_store(store, acknowledged, since)
                    table[
                        "left",
                        f"words that wait, {len(decode_queued_messages(store.open_state(SAMPLE_KEY), SAMPLE_KEY))}",
                    ] += 1
                    table["left", f"{type(path[-1].body).__name__} at the end"] += 1
        acknowledged += list_ids(continue_in_process(store_path, api, random.choice(WRITERS)))
        with SqliteStore(store_path) as store:
            path = check_store(store, acknowledged, since)
            check_queued_messages(store, path)
            since = len(path)
    return path


def print_kill_table(api, table):
    """Print where the kills struck and what they left."""
    if example_counts.IS_THOROUGH:
        rows = [f"{count:>8}  {when}: {store_path}" for (when, store_path), count in sorted(table.items())]
        print(f"\n{api}", *rows, sep="\n")  # noqa: T201 -- shown with -s


@pytest.mark.parametrize("writer", example_counts.mark_rest_long(WRITERS, keep=0))
def test_engine_worker_completes_the_day_without_kills(writer):
    """The day without kills is as the kill tests assume."""
    store, printed = MemoryStore(), []
    on_fake_clock(partial(worker_script.work, store, "anthropic", writer, 60, lambda *lines: printed.extend(lines)))
    path = check_store(store, list_ids(printed))
    check_queued_messages(store, path)
    check_day(list_messages(path))
    assert {entry.body.author for entry in path if isinstance(entry.body, CompactionEntry)} == {
        writer.replace("extract", "")
    }
