"""The engine without ``async``."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar

import anyio
import httpx2
import pytest
from forked_child import wait_for_child

from holdfast.engine import sync
from holdfast.engine.engine import Engine
from holdfast.engine.session import Session
from holdfast.engine.sync import LoopThread, SyncEngine, SyncRun, SyncSession, open_engine
from holdfast.engine.upstream.upstream import HttpUpstream
from holdfast.errors import OperationAborted, UnknownPolicy, UpstreamError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.state.entries import AnswerEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.calls import RefusalReply, ScriptedAnswer
from holdfast.testing.upstream import ScriptedUpstream

MODEL = "claude-opus-5-5"


def opened(upstream, store=None, **more):
    """Return an engine on a store in memory."""
    if isinstance(upstream, list):
        upstream = ScriptedUpstream(upstream)
    return open_engine(store or MemoryStore(), upstream=upstream, api="anthropic", model=MODEL, **more)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    """Whatever a test does to its engine, the thread of its loop has ended."""
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")] == []


class Silent:
    """An upstream that never answers."""

    def __init__(self):
        self.asked = threading.Event()
        self.left = threading.Event()

    @asynccontextmanager
    async def send(self, sent):
        self.asked.set()
        try:
            await anyio.sleep_forever()
            yield
        finally:
            self.left.set()


def test_every_verb_of_a_session_is_there():
    """Whoever knows one face knows the other: the same names and the same arguments."""
    verbs = {name for name, what in vars(Session).items() if inspect.isfunction(what) and not name.startswith("_")}
    ours = {name for name in vars(SyncSession) if not name.startswith("_")}
    assert verbs - {"get_default_target", "get_default_fields", "record_window_too_small"} <= ours
    assert isinstance(Session.key, property)
    assert isinstance(SyncSession.key, property)
    for name in verbs & ours:
        theirs, here = (inspect.signature(getattr(kind, name)) for kind in (Session, SyncSession))
        assert list(theirs.parameters) == list(here.parameters), name


def test_a_turn_with_a_tool(place):
    """Words, a call, its result, the answer; behind the block the file holds it all."""
    upstream = ScriptedUpstream([ScriptedAnswer(calls=(("read", {"path": "a"}),)), "It is high."])
    with open_engine(place, upstream=upstream, api="anthropic", model=MODEL) as engine:
        session = engine.session("tide")
        first = session.ask("How high is it?")
        [call] = first.message.calls
        assert session.append(Message("tool", (ToolResult(call.id, call.name, (Text("7 m"),)),)))
        assert session.ask().message.text == "It is high."
        assert session.key == "tide"
        assert session.report().message_count == 4
    with open_engine(place, upstream=ScriptedUpstream([]), api="anthropic", model=MODEL) as engine:
        assert engine.session("tide").report().message_count == 4


def test_branches_and_other_verbs():
    """``branch`` gives a session that goes on elsewhere; ``compact``, ``recall``, ``undo``, ``prepare`` work too."""
    with opened(["one", "two", "three"]) as engine:
        session = engine.session("tide")
        entry, *_ = session.append("How high is it?")
        session.ask()
        branched = session.branch(entry)
        assert isinstance(branched, SyncSession)
        assert branched.ask().message.text == "two"
        assert (session.report().message_count, branched.report().message_count) == (2, 2)
        assert session.compact().outcome in {"not_smaller", "nothing_to_compact"}
        assert "How high is it?" in session.recall(entry).text
        with pytest.raises(LookupError, match="nothing to undo"):
            session.undo()
        session.append("And now?")
        assert [slot.message.text for slot in session.prepare().messages] == ["How high is it?", "one", "And now?"]
        session.wait_for_compaction()
        session.close()
        again = engine.session("tide")
        assert again.session is not session.session
        assert again.report().message_count == 3


def test_events_as_they_come():
    """A run is iterated; behind it stands its answer, and the log has it."""
    store = MemoryStore()
    with opened(["It is high."], store) as engine:
        session = engine.session("tide")
        with session.run("How high is it?") as run:
            events = [event.data for event in run]
        assert isinstance(run, SyncRun)
        assert run.answer.message.text == "It is high."
    assert events[0].startswith(b'{"type":"message_start"')
    assert events[-1] == b'{"type":"message_stop"}'
    assert [type(entry.body) for entry in store.read_path("tide")][-1] is AnswerEntry


def test_nothing_is_sent_before_an_event_is_asked_for():
    """A run that nobody iterates asks nobody, and has no answer."""
    upstream = ScriptedUpstream(["unheard"])
    with opened(upstream) as engine:
        with engine.session("tide").run("How high is it?") as run:
            time.sleep(0.02)
        assert upstream.sent == []
        with pytest.raises(OperationAborted, match="not read to its end"):
            _ = run.answer


def test_who_leaves_early_has_what_was_said():
    """The answer so far is in the log as one that was interrupted, and the lane is free."""
    store = MemoryStore()
    with opened(["It is rather high today.", "fine"], store) as engine:
        session = engine.session("tide")
        with session.run("How high is it?") as run:
            for event in run:
                if b"text_delta" in event.data:
                    break
        [answer] = [entry.body for entry in store.read_path("tide") if isinstance(entry.body, AnswerEntry)]
        assert answer.stop_reason == "aborted"
        assert session.ask("Go on.").message.text == "fine"


def test_within_a_run_its_own_session_may_be_asked():
    """The block is inside the run's lane and has its permit, as it is with ``async``: nothing waits for itself."""
    with opened(["outer", "inner", "other"], permits=1) as engine:
        session, other = engine.session("tide"), engine.session("moon")
        with session.run("How high is it?") as run:
            answers = []
            for _ in run:
                if not answers:
                    answers = [session.ask("And the wind?"), other.ask("And the moon?")]
        assert [answer.message.text for answer in (run.answer, *answers)] == ["outer", "inner", "other"]


class Odd(Exception):
    """An error that Holdfast knows nothing of."""


def test_an_error_passes_through_unchanged():
    """What an upstream raises, what the library raises, and what the block raises: the same object comes out."""
    odd, own = Odd("mine"), Odd("of the block")
    refused = RefusalReply(401, "authentication_error", "no such key")
    with pytest.raises(Odd) as caught, opened([odd, refused, odd]) as engine:  # noqa: PT012
        session = engine.session("tide")
        with pytest.raises(Odd) as first:
            session.ask("How high is it?")
        assert first.value is odd
        with pytest.raises(UpstreamError, match="no such key"):
            session.ask()
        with pytest.raises(Odd) as third, session.run() as run:
            list(run)
        assert third.value is odd
        with session.run() as run:
            raise own
    assert caught.value is own


def test_an_engine_that_cannot_be_opened():
    """The error is the engine's own; no thread stays behind."""
    with pytest.raises(UnknownPolicy, match="nobodys"), opened([], policy="nobodys"):
        pass


def test_an_engine_that_was_closed():
    """Its sessions say so."""
    with opened([]) as engine:
        session = engine.session("tide")
    with pytest.raises(OperationAborted, match=r"cannot be used here .*open it again"):
        session.ask("How high is it?")


def test_a_listener_cannot_wait_for_its_own_loop():
    """Asking from inside of the loop would wait for itself for ever: that is an error, not a hang."""
    told = []

    def listen(_):
        try:
            session.ask("And now?")
        except OperationAborted as error:
            told.append(str(error))

    with opened(["fine"], listen=listen) as engine:
        session = engine.session("tide")
        assert session.ask("How high is it?").message.text == "fine"
    assert "call it from another thread" in told[0]


def test_several_threads_share_an_engine():
    """Each waits for its own answer; those of one session come one after the other."""
    with opened([f"answer {number}" for number in range(8)]) as engine:
        session, told = engine.session("tide"), []

        def ask():
            told.append(session.ask("How high is it?").message.text)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(told) == [f"answer {number}" for number in range(8)]


def test_an_upstream_that_has_connections_is_closed_with_the_engine():
    """``HttpUpstream`` needs its loop to be closed: nobody else could."""

    def down(_):
        raise httpx2.ConnectError("connection refused")

    upstream = HttpUpstream("https://a.test", "anthropic", transport=httpx2.MockTransport(down))
    with opened(upstream) as engine:
        assert isinstance(engine, SyncEngine)
        assert isinstance(engine.engine, Engine)
    assert upstream._client.is_closed


def test_closing_gives_up_what_other_threads_wait_for(monkeypatch):
    """Who waits when the block raises is told that the engine was closed; what ran is given up."""
    monkeypatch.setattr("holdfast.engine.engine.CLOSE_TIMEOUT", 0.05)
    silent, told = Silent(), []

    def ask(session):
        try:
            session.ask("How high is it?")
        except OperationAborted as error:
            told.append(str(error))

    with pytest.raises(Odd), opened(silent) as engine:  # noqa: PT012
        thread = threading.Thread(target=ask, args=(engine.session("tide"),))
        thread.start()
        silent.asked.wait()
        raise Odd
    thread.join()
    assert told
    assert "closed" in told[0]
    assert silent.left.is_set()


def test_closing_gives_up_a_run_that_was_left_open(monkeypatch):
    """A run whose events nobody reads on keeps no engine from closing, nor the program from ending."""
    monkeypatch.setattr("holdfast.engine.engine.CLOSE_TIMEOUT", 0.05)
    with opened(ScriptedUpstream([ScriptedAnswer("one two three " * 40)])) as engine:
        going = engine.session("tide").run("Go.")
        next(iter(going.__enter__()))
    with pytest.raises(OperationAborted, match="open it again"):
        going.__exit__(None, None, None)


class Waiting:
    """An upstream that never answers its first request, until that is given up, and answers the next."""

    def __init__(self):
        self.left = []

    @asynccontextmanager
    async def send(self, sent):
        if self.left:
            async with ScriptedUpstream(["fine"]).send(sent) as reply:
                yield reply
            return
        self.interrupt()
        try:
            await anyio.sleep_forever()
        finally:
            self.left.append("left")

    def interrupt(self):
        """Do what the user does meanwhile."""


class Interrupted(Waiting):
    """Its user presses Ctrl-C; the system tells ``whom`` it likes."""

    def __init__(self, whom):
        super().__init__()
        self.whom = whom

    def interrupt(self):
        signal.pthread_kill(self.whom().ident, signal.SIGINT)


@pytest.mark.parametrize("whom", [threading.main_thread, threading.current_thread])
@pytest.mark.parametrize("how", ["ask", "run"])
def test_ctrl_c_gives_up_what_runs(how, whom):
    """The call is cancelled and its lane is free; who catches ``KeyboardInterrupt`` goes on with the same session."""
    upstream = Interrupted(whom)
    with opened(upstream) as engine:
        session = engine.session("tide")
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            if how == "ask":
                session.ask("How high is it?")
            with session.run("How high is it?") as run:
                list(run)
        assert session.ask().message.text == "fine"
    assert upstream.left == ["left"]


class Hasty:
    """A portal whose user presses Ctrl-C once so many pieces of work were begun, before anybody has the last one."""

    def __init__(self, portal, most):
        self._portal, self._left = portal, most

    def start_task_soon(self, *work):
        future = self._portal.start_task_soon(*work)
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return future


@pytest.mark.parametrize(("how", "most"), [("ask", 1), ("run", 1), ("run", 2)])
def test_ctrl_c_at_the_very_beginning_gives_up_what_was_begun(how, most):
    """Work that began and nobody waits for yet holds no lane either: the session goes on."""
    upstream = Waiting()
    with opened(upstream) as engine:
        session = engine.session("tide")
        hasty = SyncSession(LoopThread(Hasty(session.loop.portal, most)), session.session)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            if how == "ask":
                hasty.ask("How high is it?")
            with hasty.run("How high is it?") as run:
                list(run)
        upstream.left.append("for the next one")
        assert session.ask("And now?").message.text == "fine"


def test_context_variables_reach_the_loop():
    """What is set when a verb is called counts for it, also behind the block of a run."""
    trace, seen = ContextVar("trace", default="none"), []

    class Seeing(ScriptedUpstream):
        @asynccontextmanager
        async def send(self, sent):
            seen.append(trace.get())
            async with super().send(sent) as reply:
                yield reply

    with opened(Seeing(["one", "two", "three"])) as engine:
        session = engine.session("tide")
        trace.set("t-1")
        session.ask("How high is it?")
        with session.run("And now?") as run:
            list(run)
        trace.set("t-2")
        session.ask("And now?")
    assert seen == ["t-1", "t-1", "t-2"]


PROGRAM = """
import threading
from holdfast.engine.sync import open_engine
from holdfast.store.memory import MemoryStore
from tests_silent import Silent

try:
    with open_engine(MemoryStore(), upstream=Silent(), api="anthropic", model="claude-opus-5-5") as engine:
        engine.session("tide").ask("How high is it?")
except KeyboardInterrupt:
    print("interrupted", [thread.name for thread in threading.enumerate() if thread.name == "holdfast"])
"""
SILENT = """
import anyio
from contextlib import asynccontextmanager

class Silent:
    @asynccontextmanager
    async def send(self, sent):
        print("asked", flush=True)
        try:
            await anyio.sleep_forever()
            yield
        finally:
            print("left", flush=True)
"""


def test_ctrl_c_ends_a_program(tmp_path):
    """What runs is cancelled, the thread ends, and the program goes on with ``KeyboardInterrupt``."""
    (tmp_path / "tests_silent.py").write_text(SILENT)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout.readline() == "asked\n"
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out == "left\ninterrupted []\n"
    assert child.returncode == 0


@pytest.mark.timeout(60)
def test_ctrl_c_while_the_loop_begins_does_not_wait_for_ever(monkeypatch):
    """Who presses Ctrl-C before the loop is there gets it through, and the loop ends by itself."""
    serve = sync._serve_portal

    def slowly(*given):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(sync.WAIT_SLICE_SECONDS)
        serve(*given)

    monkeypatch.setattr(sync, "_serve_portal", slowly)
    with pytest.raises(KeyboardInterrupt), opened(Waiting()):
        pytest.fail("there is no loop yet")


VERBS = {
    "ask": lambda _, session: session.ask("And now?"),
    "append": lambda _, session: session.append("And now?"),
    "run": lambda _, session: session.run("And now?").__enter__(),
    "compact": lambda _, session: session.compact(),
    "report": lambda _, session: session.report(),
    "close": lambda _, session: session.close(),
    "session": lambda engine, _: engine.session("tide"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_engine_of_another_process_says_so(verb):
    """Its loop has no thread in a forked child, which could wait for ever; the parent goes on as before."""
    with opened(["one", "two"]) as engine:
        session = engine.session("tide")
        session.ask("How high is it?")

        def there():
            with pytest.raises(OperationAborted, match=r"another process.* open it here too"):
                VERBS[verb](engine, session)

        assert wait_for_child(there) == 0
        assert session.ask("And now?").message.text == "two"


def test_a_forked_child_may_leave_the_block_and_open_an_engine():
    """The block's end in a child ends nothing of its parent's, and an engine of its own works."""

    def there():
        with opened(["ours"]) as engine:
            assert engine.session("tide").ask("How high is it?").message.text == "ours"
        block.close()

    with ExitStack() as block:
        engine = block.enter_context(opened(["theirs"]))
        assert wait_for_child(there) == 0
        assert engine.session("tide").ask("How high is it?").message.text == "theirs"


LATE = """
import sys, threading, time
from holdfast.engine.sync import open_engine
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import ScriptedUpstream

begun = threading.Event()


def work():
    store = MemoryStore()
    with open_engine(store, upstream=ScriptedUpstream(["7 m"]), api="anthropic", model="claude-opus-5-5") as engine:
        with engine.session("tide").run("How high is it?") as run:
            for event in run:
                begun.set()
                threading.main_thread().join()
                time.sleep(0.1)
        print(run.answer.message.text, len(store.open_state("tide").history.messages))


threading.Thread(target=work, daemon=sys.argv[1] == "daemon").start()
begun.wait()
"""


@pytest.mark.parametrize(("kind", "told"), [("waited for", "7 m 2\n"), ("daemon", "")])
def test_an_answer_that_comes_when_the_main_thread_has_ended_is_stored(kind, told):
    """As long as Python waits for the thread that asked; a daemon thread keeps no program from ending."""
    done = subprocess.run([sys.executable, "-c", LATE, kind], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")


UNTOLD = """
from functools import partial
import anyio
from holdfast.engine import sync

def interrupted(_):
    raise KeyboardInterrupt

sync._stop_portal, sync.WAIT_SLICE_SECONDS = interrupted, 0.1
try:
    with sync.run_event_loop() as loop:
        loop.run(partial(anyio.to_thread.run_sync, print, "worked"))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_where_the_loop_is_told_to_end_ends_the_program():
    """A loop that nobody told to end keeps no program from ending, nor do the threads that wait for its work."""
    done = subprocess.run([sys.executable, "-c", UNTOLD], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "worked\ninterrupted\n", "")
