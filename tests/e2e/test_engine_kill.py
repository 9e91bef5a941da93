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

import engine_worker as dying
import example_counts
import pytest
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast.engine.log.queued_messages import read_queued_messages
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
ONWARD = 4
"""Verbs of the engine that goes on after each kill."""
SEED = 15_10
APIS = ("anthropic", "openai-responses")
WRITERS = ("extract", "model")
AIMS = ("", "", "~CompactionStarted", "~interrupt", "~RequestStarted")
"""A kill comes shortly after the next line that begins so; most are anywhere."""
SOON = 0.012
"""Seconds after that line, at most: about as long as a verb takes."""
SCRIPT = Path(__file__).with_name("engine_worker.py")


@pytest.fixture(scope="module")
def workers():
    """A process that starts workers."""
    command = [sys.executable, str(SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def killed(workers, place, api, random):
    """Start a worker and kill it after some of its words; return what it told before it died."""
    workers.stdin.write(f"{place} {api} {random.choice(WRITERS)}\n")
    workers.stdin.flush()
    pid = int(workers.stdout.readline().removeprefix("pid "))
    patience, aim, told, is_hit = random.randrange(40), random.choice(AIMS), [], False
    while (line := workers.stdout.readline().strip()) != "over":
        told.append(line)
        if not is_hit and len(told) > patience and line.startswith(aim):
            is_hit = True
            time.sleep(random.random() * SOON)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return told


# -- what must hold ----------------------------------------------------------------------------------------------------


def said(path):
    return [entry.body.sized_message.message for entry in path if isinstance(entry.body, MessageEntry)]


def named_blobs(body):
    """Return the blobs that an entry names."""
    named = body.data["blobs"] if getattr(body, "reason", "") == NOTE_CAPPED else []
    return [*named, *(edit.blob_hash for edit in getattr(body, "edits", ()) if edit.blob_hash)]


def check(store, acknowledged, since=0):
    """nothing-lost: what was acknowledged is there, once; text-before-entry: so are its texts;
    compaction-is-one-record: a compaction is there, whole, or not.
    """
    path = store.read_path(SAMPLE_KEY)
    there = Counter(entry.id for entry in path)
    assert [id_ for id_ in acknowledged if there[id_] != 1] == []
    assert len(store.read_tips(SAMPLE_KEY)) == 1
    assert store.get_session(SAMPLE_KEY).entry_count == len(path)
    assert is_same_request(store.open_state(SAMPLE_KEY), ConversationState.from_entries(path))
    for entry in path[since:]:
        if isinstance(entry.body, CompactionEntry):
            assert entry.body.tokens_after < entry.body.tokens_before
            assert [
                one for one in SUMMARY_HEADINGS if entry.body.author and f"## {one}" not in entry.body.summary.text
            ] == []
        assert all(store.blobs.get_size(blob) for blob in named_blobs(entry.body))
    return path


def check_words(store, path):
    """queued-input-once: what was said while an answer was on its way is said by now, once."""
    assert read_queued_messages(store, SAMPLE_KEY, None) == []
    texts = Counter(one.text for one in said(path) if one.role == "user")
    waited = [unpack_value(entry.body.raw, Message).text for entry in path if dying.is_queued(entry.body)]
    assert [text for text in waited if texts[text] != 1] == []
    assert max(texts.values()) == 1


def check_day(messages):
    """No step is lost or done twice, whoever did it: each answer in turn, with its own results."""
    answers = [one for one in messages if one.role == "assistant"]
    steps = [dying.step_at(number) for number in range(len(answers))]
    assert [one.text for one in answers] == [step.answer.text for step in steps]
    results = [result.content[0].text for one in messages for result in one.results]
    assert results == [text for step in steps for text in step.results][: len(results)]
    assert sum(len(step.results) for step in steps[:-1]) <= len(results)


def gone_on(place, api, writer="extract", steps=ONWARD):
    """Work some verbs on in an engine of this process, and return what was acknowledged."""
    told = []
    provider = on_fake_clock(partial(dying.work, str(place), api, writer, steps, lambda *lines: told.extend(lines)))
    assert dying.wrong(provider) == []
    assert isinstance(provider.requests[-1].reply, ModelAnswer)
    return told


def ids(told):
    return [line for line in told if not line.startswith("~")]


# -- the kills ---------------------------------------------------------------------------------------------------------


@pytest.mark.counts
@pytest.mark.timeout(3_600 if example_counts.IS_THOROUGH else 120)
@pytest.mark.parametrize("api", example_counts.spare(APIS, keep=0))
def test_a_killed_engine_goes_on(workers, tmp_path, api):
    """nothing-lost, text-before-entry, one-writer, compaction-is-one-record, queued-input-once: after each kill the
    session opens at once, whole, and a new engine goes on.
    """
    random, table = Random(f"{SEED} {api}"), Counter()
    for number in range(SESSIONS):
        path = killed_session(workers, tmp_path / f"{number}.db", api, random, table)
        check_day(said(path))
        made = [entry.body.author for entry in path if isinstance(entry.body, CompactionEntry)]
        assert made
        table["in all", "entries"] += len(path)
        table.update(("in all", f"compactions by {by or 'extract'}") for by in made)
    assert len([what for when, what in table if when == "killed at"]) >= 4
    report(api, table)


def killed_session(workers, place, api, random, table):
    """Kill one worker after the other at one session; return its log."""
    acknowledged, since = [], 0
    for _ in range(KILLS):
        told = killed(workers, place, api, random)
        assert [line for line in told if line.startswith("~wrong")] == []
        acknowledged += ids(told)
        table["killed at", told[-1] if told and told[-1].startswith("~") else "an acknowledgement"] += 1
        if place.exists():
            with SqliteStore(place) as store:
                if store.list_sessions():
                    path = check(store, acknowledged, since)
                    table["left", f"words that wait, {len(read_queued_messages(store, SAMPLE_KEY, None))}"] += 1
                    table["left", f"{type(path[-1].body).__name__} at the end"] += 1
        acknowledged += ids(gone_on(place, api, random.choice(WRITERS)))
        with SqliteStore(place) as store:
            path = check(store, acknowledged, since)
            check_words(store, path)
            since = len(path)
    return path


def report(api, table):
    """Show where the kills struck and what they left."""
    if example_counts.IS_THOROUGH:
        rows = [f"{count:>8}  {when}: {what}" for (when, what), count in sorted(table.items())]
        print(f"\n{api}", *rows, sep="\n")  # noqa: T201 -- shown with -s


@pytest.mark.parametrize("writer", example_counts.spare(WRITERS, keep=0))
def test_a_worker_nobody_kills_does_the_same(writer):
    """The day itself is as the kills assume."""
    store, told = MemoryStore(), []
    on_fake_clock(partial(dying.work, store, "anthropic", writer, 60, lambda *lines: told.extend(lines)))
    path = check(store, ids(told))
    check_words(store, path)
    check_day(said(path))
    assert {entry.body.author for entry in path if isinstance(entry.body, CompactionEntry)} == {
        writer.replace("extract", "")
    }
