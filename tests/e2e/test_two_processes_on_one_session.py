"""Two processes, each with an engine, work on one session at the same time, on a real disk.

One round or more of two that work at random in each of two APIs, 3 with HOLDFAST_COUNTS=ci, 20 with thorough; the seed
is fixed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from shutil import copytree
from threading import Thread

import anyio
import engine_command_loop as command_loop
import engine_worker as worker_script
import example_counts
import pytest
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import MessageEntry
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import run_on_fake_clock as on_fake_clock

pytestmark = pytest.mark.long
"""Each test starts processes that load everything; the leases are tested beside the store too."""

ROUNDS, MOST_ROUNDS = example_counts.choose(quick=(1, 15), ci=(3, 15), thorough=(20, 100))
SEED = 15_11
APIS = ("anthropic", "openai-responses")
WRITERS = ("extract", "model")
FOLDER = Path(__file__).parent


@contextmanager
def start_script(script, *arguments):
    """Yield a process that reads lines and writes lines."""
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # a test that failed may leave it holding the session
            process.kill()


def write_lines(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def read_line(process):
    return process.stdout.readline().strip()


# -- one after the other -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worked_folder(tmp_path_factory):
    """Return a folder with a store whose session has something to compact."""
    folder = tmp_path_factory.mktemp("begun")
    on_fake_clock(partial(worker_script.work, str(folder / "store.db"), "anthropic", "extract", 20, lambda *_: None))
    return folder


@pytest.fixture
def store_path(worked_folder, tmp_path):
    """Return a copy of that store."""
    copytree(worked_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "store.db"


@pytest.fixture
def other_process(store_path):
    """Yield a function that runs a command in another process with an engine on the same session."""
    with start_script("engine_command_loop.py", store_path, "anthropic") as process:

        def send_command(line):
            write_lines(process, line)
            report = json.loads(read_line(process))
            assert report["wrong_refusals"] == 0
            return report

        send_command.process = process
        send_command("open")
        yield send_command


def run_session(store_path, use_session):
    """Run ``talk`` with a session in this process, and check that the provider refuses nothing."""
    provider = command_loop.Provider(
        command_loop.ProviderSettings(window=worker_script.WINDOW, factor=worker_script.FACTOR)
    )

    async def begin():
        async with command_loop.open_engine(str(store_path), "anthropic", provider) as engine:
            return await use_session(await engine.session(SAMPLE_KEY))

    value = anyio.run(begin)
    assert worker_script.list_wrong_refusals(provider) == []
    return value


def judge_tree(store_path, acknowledged=()):
    """nothing-lost: each acknowledged entry is stored once; each branch is complete, with no message twice on one."""
    with SqliteStore(store_path) as store:
        entry_counts = Counter(entry.id for entry in store.read_entries(SAMPLE_KEY))
        assert [id_ for id_ in acknowledged if entry_counts[id_] != 1] == []
        assert store.get_session(SAMPLE_KEY).entry_count == entry_counts.total()
        paths = [store.read_path(SAMPLE_KEY, leaf.id) for leaf in store.read_tips(SAMPLE_KEY)]
        for path in paths:
            assert is_same_request(store.open_state(SAMPLE_KEY, path[-1].id), ConversationState.from_entries(path))
            texts = Counter(entry.body.sized_message.message.text for entry in path if is_of_user(entry))
            assert max(texts.values()) == 1
    return paths


def is_of_user(entry):
    return isinstance(entry.body, MessageEntry) and entry.body.sized_message.message.role == "user"


def test_decision_of_one_process_counts_for_the_other(store_path, other_process):
    """A compaction by one process is in the next request of the other, and so is its undo, on one branch."""

    async def use_session(session):
        assert other_process("compact")["outcome"] == "compacted"
        active_ids = other_process("state")["active_decisions"]
        first_request = await session.prepare()
        assert [id_ for id_, _ in session.journal.state.view.active_decisions] == active_ids
        assert first_request.plan.state.view.compaction is not None
        undone = other_process("undo")["undone"]
        second_request = await session.prepare()
        assert undone == active_ids[-1]
        assert [id_ for id_, _ in session.journal.state.view.active_decisions] == active_ids[:-1]
        assert len(second_request.messages) > len(first_request.messages)
        await session.ask()

    run_session(store_path, use_session)
    assert len(judge_tree(store_path)) == 1


def test_messages_of_two_processes_form_two_branches(store_path, other_process):
    """Each process continues on its own branch with its own messages and answer, and nothing is lost."""

    async def use_session(session):
        mine = await session.append("Mine.")
        theirs = other_process("say Theirs.")["ids"]
        await session.ask()
        other_process("ask")
        return mine, theirs

    mine, theirs = run_session(store_path, use_session)
    paths = [{entry.id for entry in path} for path in judge_tree(store_path, [*mine, *theirs])]
    assert len(paths) == 2
    assert sorted((*mine, *theirs)) == sorted(id_ for path in paths for id_ in {*mine, *theirs} & path)


def test_lease_is_free_once_its_holder_is_killed(store_path, other_process):
    """one-writer: a process that waits for a lease gets it as soon as the holder is killed."""

    async def use_session(session):
        write_lines(other_process.process, "hold")
        assert read_line(other_process.process) == "{}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.append, "Whatever becomes of the other.")
            await anyio.sleep(0.1)
            assert len(session.journal.state.history.sized_messages) == message_count
            other_process.process.send_signal(signal.SIGKILL)  # who waited in vain would raise
        return await session.ask()

    with SqliteStore(store_path) as store:
        message_count = len(store.open_state(SAMPLE_KEY).history.sized_messages)
    assert run_session(store_path, use_session).message.text
    assert len(judge_tree(store_path)) == 1


# -- both at once ------------------------------------------------------------------------------------------------------


class Worker:
    """A process that works on the session until it is killed."""

    def __init__(self, process, order):
        self.process, self.output = process, []
        write_lines(process, order)
        self.pid = int(read_line(process).removeprefix("pid "))
        self.reader = Thread(target=self.listen)
        self.reader.start()

    def listen(self):
        """Read all its lines until it ends."""
        while (line := read_line(self.process)) != "over":
            self.output.append(line)

    def wait_for_lines(self, lines):
        """Return once it has written so many more lines."""
        line_count, deadline = len(self.output) + lines, time.monotonic() + 60
        while len(self.output) < line_count:
            assert self.reader.is_alive(), self.output[-20:]
            assert time.monotonic() < deadline, "it does not go on"
            time.sleep(0.001)

    def kill(self):
        """Kill it, read its last lines, and return the acknowledged ids."""
        os.kill(self.pid, signal.SIGKILL)
        self.reader.join()
        assert [line for line in self.output if line.startswith("~wrong")] == []
        return [line for line in self.output if not line.startswith("~")]


@pytest.fixture(scope="module")
def worker_starters():
    """Yield two processes that start workers."""
    with start_script("engine_worker.py") as first, start_script("engine_worker.py") as second:
        assert [read_line(process) for process in (first, second)] == ["ready", "ready"]
        yield first, second


@pytest.mark.long
@pytest.mark.counts
@pytest.mark.timeout(3_600 if example_counts.IS_THOROUGH else 120)
@pytest.mark.parametrize("api", APIS)
def test_two_processes_lose_nothing_when_both_are_killed(worker_starters, tmp_path, api):
    """nothing-lost, one-writer: each request is valid, each acknowledged entry is stored, and a killed process blocks
    nobody.
    """
    random, acknowledged, store_path, branches = Random(f"{SEED} {api}"), [], tmp_path / "store.db", set()
    for turn in count(1):
        first_worker, second_worker = (
            Worker(process, f"{store_path} {api} {random.choice(WRITERS)}") for process in worker_starters
        )
        first_worker.wait_for_lines(random.randrange(60))
        second_worker.wait_for_lines(random.randrange(30))
        acknowledged += first_worker.kill()
        second_worker.wait_for_lines(20)
        acknowledged += second_worker.kill()
        branches.add(len(judge_tree(store_path, acknowledged)))
        done = max(branches) > 1 and list_kinds(store_path) >= {
            "MessageEntry",
            "CompactionEntry",
            "DecisionEntry",
            "AnswerEntry",
        }
        if done and turn >= ROUNDS:  # how far they come before they are killed is chance
            break
        assert turn < MOST_ROUNDS, list_kinds(store_path)


def list_kinds(store_path):
    """Return the kinds of entries in the session."""
    with SqliteStore(store_path) as store:
        return {type(entry.body).__name__ for entry in store.read_entries(SAMPLE_KEY)}
