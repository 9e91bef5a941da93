"""A process that works with an engine on a real disk is killed at random points, and the next one goes on.

20 kills, 500 with HOLDFAST_THOROUGH=1, half of them in each of two APIs; the seed is fixed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random

import pytest

from holdfast.model.branch import Branch
from holdfast.model.entries import Compaction, Said
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import run as on_fake_clock
from holdfast.testing.provider.calls import Answered
from holdfast.testing.samples import KEY, same_request

KILLS = 250 if os.environ.get("HOLDFAST_THOROUGH") == "1" else 10
SEED = 15_10
APIS = ("anthropic", "openai-chat")
SCRIPT = Path(__file__).with_name("dying_engine.py")


def _loaded(path):
    """Return the worker's module, to go on as it does."""
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dying = _loaded(SCRIPT)


@pytest.fixture(scope="module", params=APIS)
def api(request):
    return request.param


@pytest.fixture
def workers(tmp_path, api):
    """A process that starts workers on a store on disk."""
    command = [sys.executable, str(SCRIPT), str(tmp_path / "store.db"), api]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def killed(workers, random):
    """Start a worker and kill it after some of its words; return what it told before it died."""
    workers.stdin.write("go\n")
    workers.stdin.flush()
    pid = int(workers.stdout.readline().removeprefix("pid "))
    patience, told = random.randrange(30), []
    while (line := workers.stdout.readline().strip()) != "over":
        told.append(line)
        if len(told) == patience + 1:
            time.sleep(random.random() * 0.01)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return told


def said(path):
    return [entry.body.slot.message for entry in path if isinstance(entry.body, Said)]


def check(store, acknowledged):
    """S1: what was acknowledged is there, in order; S11: a compaction is there, whole, or not there."""
    path = store.path(KEY)
    places = {entry.id: place for place, entry in enumerate(path)}
    assert [id_ for id_ in acknowledged if id_ not in places] == []
    found = [places[id_] for id_ in acknowledged]
    assert found == sorted(found)
    assert same_request(store.branch(KEY), Branch.build(path))
    for entry in path:
        if isinstance(entry.body, Compaction):
            assert entry.body.after < entry.body.before
            assert entry.body.summary.text
        for edit in getattr(entry.body, "edits", ()):
            assert not edit.blob or len(store.blobs.get(edit.blob)) > 0
    return path


def test_a_killed_engine_goes_on(workers, tmp_path, api):
    """After each kill the session opens, has all that was acknowledged, and the next worker goes on with the task."""
    random, acknowledged, steps, compactions = Random(SEED), [], [], set()
    for _ in range(KILLS):
        told = killed(workers, random)
        assert [line for line in told if line.startswith("~wrong")] == []
        acknowledged += [line for line in told if not line.startswith("~")]
        if not (tmp_path / "store.db").exists():
            continue
        with SqliteStore(tmp_path / "store.db") as store:
            if store.sessions():
                path = check(store, acknowledged)
                steps.append(len(said(path)))
                compactions.add(sum(isinstance(entry.body, Compaction) for entry in path))
    assert steps == sorted(steps)
    assert steps[-1] > KILLS
    assert len(compactions) > 1
    provider = on_fake_clock(partial(dying.work, str(tmp_path / "store.db"), api, 12, lambda *_: None))
    assert dying.wrong(provider) == []
    assert isinstance(provider.requests[-1].reply, Answered)
    with SqliteStore(tmp_path / "store.db") as store:
        judge_task(said(check(store, acknowledged)))


def judge_task(messages):
    """No step is lost or done twice, whoever did it: one question, then each part in turn, with its own result."""
    assert [one.text for one in messages if one.role == "user"] == [dying.TASK]
    answers = [one for one in messages if one.role == "assistant"]
    assert [one.text for one in answers] == [f"Step {step}." for step in range(len(answers))]
    results = [result.content[0].text for one in messages for result in one.results]
    assert results == [dying.result(step) for step in range(len(results))]
    assert len(answers) - len(results) in (0, 1)


def test_a_worker_nobody_kills_does_the_same():
    """The task itself is as the kills assume: in memory, to its end."""
    store = MemoryStore()
    on_fake_clock(partial(dying.work, store, "anthropic", 40, lambda *_: None))
    judge_task(said(store.path(KEY)))
