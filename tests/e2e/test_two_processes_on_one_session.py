"""Two processes with an engine each work on one session at once, on a real disk.

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
import engine_command_loop as obeying
import engine_worker as dying
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
HERE = Path(__file__).parent


@contextmanager
def started(script, *arguments):
    """A process that reads lines and writes lines."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # a test that failed may leave it holding the session
            process.kill()


def tell(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def heard(process):
    return process.stdout.readline().strip()


# -- one after the other -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with a store with a session that has something to compact."""
    folder = tmp_path_factory.mktemp("begun")
    on_fake_clock(partial(dying.work, str(folder / "store.db"), "anthropic", "extract", 20, lambda *_: None))
    return folder


@pytest.fixture
def place(begun, tmp_path):
    """A copy of that store."""
    copytree(begun, tmp_path, dirs_exist_ok=True)
    return tmp_path / "store.db"


@pytest.fixture
def other(place):
    """Another process with an engine on the same session."""
    with started("engine_command_loop.py", place, "anthropic") as process:

        def does(line):
            tell(process, line)
            told = json.loads(heard(process))
            assert told["wrong"] == 0
            return told

        does.process = process
        does("open")
        yield does


def own(place, talk):
    """Return what ``talk`` returns of a session in this process, of which the provider refuses nothing."""
    provider = obeying.Provider(obeying.ProviderSettings(window=dying.WINDOW, factor=dying.FACTOR))

    async def begin():
        async with obeying.opened(str(place), "anthropic", provider) as engine:
            return await talk(await engine.session(SAMPLE_KEY))

    told = anyio.run(begin)
    assert dying.wrong(provider) == []
    return told


def judge_tree(place, acknowledged=()):
    """nothing-lost: what was acknowledged is there, once; each branch is whole, and nothing is said twice on one."""
    with SqliteStore(place) as store:
        there = Counter(entry.id for entry in store.read_entries(SAMPLE_KEY))
        assert [id_ for id_ in acknowledged if there[id_] != 1] == []
        assert store.get_session(SAMPLE_KEY).entry_count == there.total()
        paths = [store.read_path(SAMPLE_KEY, leaf.id) for leaf in store.read_tips(SAMPLE_KEY)]
        for path in paths:
            assert is_same_request(store.open_state(SAMPLE_KEY, path[-1].id), ConversationState.from_entries(path))
            texts = Counter(entry.body.sized_message.message.text for entry in path if is_of_user(entry))
            assert max(texts.values()) == 1
    return paths


def is_of_user(entry):
    return isinstance(entry.body, MessageEntry) and entry.body.sized_message.message.role == "user"


def test_what_one_decides_counts_for_the_other(place, other):
    """A compaction of one process is in the next request of the other, and so is that it was taken back: one branch."""

    async def talk(session):
        assert other("compact")["outcome"] == "compacted"
        law = other("state")["law"]
        first = await session.prepare()
        assert [id_ for id_, _ in session.journal.state.view.active_decisions] == law
        assert first.plan.state.view.compaction is not None
        undone = other("undo")["undone"]
        second = await session.prepare()
        assert undone == law[-1]
        assert [id_ for id_, _ in session.journal.state.view.active_decisions] == law[:-1]
        assert len(second.messages) > len(first.messages)
        await session.ask()

    own(place, talk)
    assert len(judge_tree(place)) == 1


def test_where_both_say_something_there_are_two_branches(place, other):
    """Each goes on where it was, with its own words and its own answer, and nobody's words are lost."""

    async def talk(session):
        mine = await session.append("Mine.")
        theirs = other("say Theirs.")["ids"]
        await session.ask()
        other("ask")
        return mine, theirs

    mine, theirs = own(place, talk)
    paths = [{entry.id for entry in path} for path in judge_tree(place, [*mine, *theirs])]
    assert len(paths) == 2
    assert sorted((*mine, *theirs)) == sorted(id_ for path in paths for id_ in {*mine, *theirs} & path)


def test_whoever_dies_with_the_lease_blocks_nobody(place, other):
    """one-writer: who waits for a lease has it as soon as its holder is killed."""

    async def talk(session):
        tell(other.process, "hold")
        assert heard(other.process) == "{}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.append, "Whatever becomes of the other.")
            await anyio.sleep(0.1)
            assert len(session.journal.state.history.sized_messages) == before
            other.process.send_signal(signal.SIGKILL)  # who waited in vain would raise
        return await session.ask()

    with SqliteStore(place) as store:
        before = len(store.open_state(SAMPLE_KEY).history.sized_messages)
    assert own(place, talk).message.text
    assert len(judge_tree(place)) == 1


# -- both at once ------------------------------------------------------------------------------------------------------


class Worker:
    """A process that works on the session until it is killed."""

    def __init__(self, process, order):
        self.process, self.told = process, []
        tell(process, order)
        self.pid = int(heard(process).removeprefix("pid "))
        self.reader = Thread(target=self.listen)
        self.reader.start()

    def listen(self):
        """Hear all that it tells, to its end."""
        while (line := heard(self.process)) != "over":
            self.told.append(line)

    def tells(self, lines):
        """Return once it told so many lines more."""
        wanted, end = len(self.told) + lines, time.monotonic() + 60
        while len(self.told) < wanted:
            assert self.reader.is_alive(), self.told[-20:]
            assert time.monotonic() < end, "it does not go on"
            time.sleep(0.001)

    def kill(self):
        """Kill it, and hear its last words."""
        os.kill(self.pid, signal.SIGKILL)
        self.reader.join()
        assert [line for line in self.told if line.startswith("~wrong")] == []
        return [line for line in self.told if not line.startswith("~")]


@pytest.fixture(scope="module")
def pair():
    """Two processes that start workers."""
    with started("engine_worker.py") as one, started("engine_worker.py") as two:
        assert [heard(process) for process in (one, two)] == ["ready", "ready"]
        yield one, two


@pytest.mark.long
@pytest.mark.counts
@pytest.mark.timeout(3_600 if example_counts.IS_THOROUGH else 120)
@pytest.mark.parametrize("api", APIS)
def test_two_that_work_at_once_lose_nothing(pair, tmp_path, api):
    """nothing-lost, one-writer: each request is valid; what either was told to be stored is; one that is killed blocks
    nobody.
    """
    random, acknowledged, place, branches = Random(f"{SEED} {api}"), [], tmp_path / "store.db", set()
    for turn in count(1):
        one, two = (Worker(process, f"{place} {api} {random.choice(WRITERS)}") for process in pair)
        one.tells(random.randrange(60))
        two.tells(random.randrange(30))
        acknowledged += one.kill()
        two.tells(20)
        acknowledged += two.kill()
        branches.add(len(judge_tree(place, acknowledged)))
        done = max(branches) > 1 and kinds_in(place) >= {
            "MessageEntry",
            "CompactionEntry",
            "DecisionEntry",
            "AnswerEntry",
        }
        if done and turn >= ROUNDS:  # how far they come before they are killed is chance
            break
        assert turn < MOST_ROUNDS, kinds_in(place)


def kinds_in(place):
    """Return the kinds of entries that the session has."""
    with SqliteStore(place) as store:
        return {type(entry.body).__name__ for entry in store.read_entries(SAMPLE_KEY)}
