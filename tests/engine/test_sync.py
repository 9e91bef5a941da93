"""The synchronous engine, its event loop thread, Ctrl-C and forked processes."""

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


def open_sync_engine(upstream, store=None, **options):
    """Open a synchronous engine, on a store in memory by default."""
    if isinstance(upstream, list):
        upstream = ScriptedUpstream(upstream)
    return open_engine(store or MemoryStore(), upstream=upstream, api="anthropic", model=MODEL, **options)


@pytest.fixture(autouse=True)
def assert_no_thread_remains():
    """Assert after each test that the thread of the engine's loop has ended."""
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")] == []


class SilentUpstream:
    """An upstream that never answers."""

    def __init__(self):
        self.is_requested = threading.Event()
        self.is_cancelled = threading.Event()

    @asynccontextmanager
    async def send(self, request):
        self.is_requested.set()
        try:
            await anyio.sleep_forever()
            yield
        finally:
            self.is_cancelled.set()


def test_sync_session_has_every_method_of_session():
    """The synchronous session has the same methods with the same arguments as the asynchronous one."""
    async_names = {
        name for name, member in vars(Session).items() if inspect.isfunction(member) and not name.startswith("_")
    }
    sync_names = {name for name in vars(SyncSession) if not name.startswith("_")}
    assert async_names - {"get_default_target", "get_default_fields", "record_window_too_small"} <= sync_names
    assert isinstance(Session.key, property)
    assert isinstance(SyncSession.key, property)
    for name in async_names & sync_names:
        async_signature, sync_signature = (inspect.signature(getattr(kind, name)) for kind in (Session, SyncSession))
        assert list(async_signature.parameters) == list(sync_signature.parameters), name


def test_sync_session_runs_a_tool_turn(store_path):
    """A message, a call, its result and the answer are all in the store's file after the block."""
    upstream = ScriptedUpstream([ScriptedAnswer(calls=(("read", {"path": "a"}),)), "It is high."])
    with open_engine(store_path, upstream=upstream, api="anthropic", model=MODEL) as engine:
        session = engine.session("tide")
        first = session.ask("How high is it?")
        [call] = first.message.calls
        assert session.append(Message("tool", (ToolResult(call.id, call.name, (Text("7 m"),)),)))
        assert session.ask().message.text == "It is high."
        assert session.key == "tide"
        assert session.report().message_count == 4
    with open_engine(store_path, upstream=ScriptedUpstream([]), api="anthropic", model=MODEL) as engine:
        assert engine.session("tide").report().message_count == 4


def test_sync_session_branches_compacts_recalls_and_prepares():
    """``branch`` returns a session that continues elsewhere; ``compact``, ``recall``, ``undo`` and ``prepare`` work
    too.
    """
    with open_sync_engine(["one", "two", "three"]) as engine:
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


def test_sync_run_yields_events_and_keeps_the_answer():
    """A run yields the provider's events; afterwards it has the answer, and so does the log."""
    store = MemoryStore()
    with open_sync_engine(["It is high."], store) as engine:
        session = engine.session("tide")
        with session.run("How high is it?") as run:
            events = [event.data for event in run]
        assert isinstance(run, SyncRun)
        assert run.answer.message.text == "It is high."
    assert events[0].startswith(b'{"type":"message_start"')
    assert events[-1] == b'{"type":"message_stop"}'
    assert [type(entry.body) for entry in store.read_path("tide")][-1] is AnswerEntry


def test_sync_run_sends_nothing_before_it_is_iterated():
    """A run that is not iterated sends no request and has no answer."""
    upstream = ScriptedUpstream(["unheard"])
    with open_sync_engine(upstream) as engine:
        with engine.session("tide").run("How high is it?") as run:
            time.sleep(0.02)
        assert upstream.sent == []
        with pytest.raises(OperationAborted, match="not read to its end"):
            _ = run.answer


def test_sync_run_left_early_records_the_partial_answer():
    """The partial answer is in the log as aborted, and the lane is free."""
    store = MemoryStore()
    with open_sync_engine(["It is rather high today.", "fine"], store) as engine:
        session = engine.session("tide")
        with session.run("How high is it?") as run:
            for event in run:
                if b"text_delta" in event.data:
                    break
        [answer] = [entry.body for entry in store.read_path("tide") if isinstance(entry.body, AnswerEntry)]
        assert answer.stop_reason == "aborted"
        assert session.ask("Go on.").message.text == "fine"


def test_sync_session_can_be_asked_within_its_own_run():
    """The block is inside the run's lane and has its permit, as with ``async``, so it does not wait for itself."""
    with open_sync_engine(["outer", "inner", "other"], permits=1) as engine:
        session, other = engine.session("tide"), engine.session("moon")
        with session.run("How high is it?") as run:
            answers = []
            for _ in run:
                if not answers:
                    answers = [session.ask("And the wind?"), other.ask("And the moon?")]
        assert [answer.message.text for answer in (run.answer, *answers)] == ["outer", "inner", "other"]


class CustomError(Exception):
    """An error that Holdfast knows nothing of."""


def test_sync_engine_passes_errors_through_unchanged():
    """Errors of the upstream, the library and the block come out as the same objects."""
    upstream_error, block_error = CustomError("mine"), CustomError("of the block")
    refusal = RefusalReply(401, "authentication_error", "no such key")
    with pytest.raises(CustomError) as caught, open_sync_engine([upstream_error, refusal, upstream_error]) as engine:  # noqa: PT012
        session = engine.session("tide")
        with pytest.raises(CustomError) as first:
            session.ask("How high is it?")
        assert first.value is upstream_error
        with pytest.raises(UpstreamError, match="no such key"):
            session.ask()
        with pytest.raises(CustomError) as third, session.run() as run:
            list(run)
        assert third.value is upstream_error
        with session.run() as run:
            raise block_error
    assert caught.value is block_error


def test_open_engine_raises_the_engine_error_and_leaves_no_thread():
    """The error is the engine's own; no thread stays behind."""
    with pytest.raises(UnknownPolicy, match="nobodys"), open_sync_engine([], policy="nobodys"):
        pass


def test_sync_session_of_a_closed_engine_raises_operation_aborted():
    """The error says that the engine has to be opened again."""
    with open_sync_engine([]) as engine:
        session = engine.session("tide")
    with pytest.raises(OperationAborted, match=r"cannot be used here .*open it again"):
        session.ask("How high is it?")


def test_sync_session_raises_when_called_from_its_own_loop():
    """A call from inside the loop would wait for itself for ever, so it raises instead of hanging."""
    errors = []

    def listen(_):
        try:
            session.ask("And now?")
        except OperationAborted as error:
            errors.append(str(error))

    with open_sync_engine(["fine"], listen=listen) as engine:
        session = engine.session("tide")
        assert session.ask("How high is it?").message.text == "fine"
    assert "call it from another thread" in errors[0]


def test_sync_engine_serves_several_threads():
    """Each thread gets its own answer; requests of one session run one after the other."""
    with open_sync_engine([f"answer {number}" for number in range(8)]) as engine:
        session, answers = engine.session("tide"), []

        def ask():
            answers.append(session.ask("How high is it?").message.text)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == [f"answer {number}" for number in range(8)]


def test_sync_engine_closes_its_http_upstream():
    """An ``HttpUpstream`` can only be closed in its loop, which ends with the engine."""

    def refuse_connection(_):
        raise httpx2.ConnectError("connection refused")

    upstream = HttpUpstream("https://a.test", "anthropic", transport=httpx2.MockTransport(refuse_connection))
    with open_sync_engine(upstream) as engine:
        assert isinstance(engine, SyncEngine)
        assert isinstance(engine.engine, Engine)
    assert upstream._client.is_closed


def test_sync_engine_close_aborts_calls_of_other_threads(monkeypatch):
    """When the block raises, calls of other threads are cancelled and raise OperationAborted."""
    monkeypatch.setattr("holdfast.engine.engine.CLOSE_TIMEOUT", 0.05)
    upstream, errors = SilentUpstream(), []

    def ask(session):
        try:
            session.ask("How high is it?")
        except OperationAborted as error:
            errors.append(str(error))

    with pytest.raises(CustomError), open_sync_engine(upstream) as engine:  # noqa: PT012
        thread = threading.Thread(target=ask, args=(engine.session("tide"),))
        thread.start()
        upstream.is_requested.wait()
        raise CustomError
    thread.join()
    assert errors
    assert "closed" in errors[0]
    assert upstream.is_cancelled.is_set()


def test_sync_engine_close_aborts_an_open_run(monkeypatch):
    """A run that nobody reads keeps neither the engine from closing nor the program from ending."""
    monkeypatch.setattr("holdfast.engine.engine.CLOSE_TIMEOUT", 0.05)
    with open_sync_engine(ScriptedUpstream([ScriptedAnswer("one two three " * 40)])) as engine:
        run = engine.session("tide").run("Go.")
        next(iter(run.__enter__()))
    with pytest.raises(OperationAborted, match="open it again"):
        run.__exit__(None, None, None)


class WaitingUpstream:
    """An upstream that answers only after its first request was cancelled."""

    def __init__(self):
        self.cancellations = []

    @asynccontextmanager
    async def send(self, request):
        if self.cancellations:
            async with ScriptedUpstream(["fine"]).send(request) as reply:
                yield reply
            return
        self.interrupt()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancellations.append("first")

    def interrupt(self):
        """Do nothing; a subclass interrupts the program here."""


class InterruptedUpstream(WaitingUpstream):
    """An upstream during whose first request a thread gets Ctrl-C."""

    def __init__(self, get_thread):
        super().__init__()
        self.get_thread = get_thread

    def interrupt(self):
        signal.pthread_kill(self.get_thread().ident, signal.SIGINT)


@pytest.mark.parametrize("get_thread", [threading.main_thread, threading.current_thread])
@pytest.mark.parametrize("how", ["ask", "run"])
def test_sync_session_cancels_its_call_on_ctrl_c(how, get_thread):
    """Ctrl-C cancels the call and frees its lane, and the session can be used after ``KeyboardInterrupt``."""
    upstream = InterruptedUpstream(get_thread)
    with open_sync_engine(upstream) as engine:
        session = engine.session("tide")
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            if how == "ask":
                session.ask("How high is it?")
            with session.run("How high is it?") as run:
                list(run)
        assert session.ask().message.text == "fine"
    assert upstream.cancellations == ["first"]


class InterruptingPortal:
    """A portal that raises KeyboardInterrupt after starting a number of tasks, before the last one is returned."""

    def __init__(self, portal, task_count):
        self._portal, self._remaining = portal, task_count

    def start_task_soon(self, *work):
        future = self._portal.start_task_soon(*work)
        self._remaining -= 1
        if self._remaining == 0:
            raise KeyboardInterrupt
        return future


@pytest.mark.parametrize(("how", "task_count"), [("ask", 1), ("run", 1), ("run", 2)])
def test_sync_session_cancels_a_task_that_ctrl_c_hit_at_its_start(how, task_count):
    """Ctrl-C between the start of a task and the wait for it leaves no lane held."""
    upstream = WaitingUpstream()
    with open_sync_engine(upstream) as engine:
        session = engine.session("tide")
        interrupted_session = SyncSession(
            LoopThread(InterruptingPortal(session.loop.portal, task_count)), session.session
        )
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            if how == "ask":
                interrupted_session.ask("How high is it?")
            with interrupted_session.run("How high is it?") as run:
                list(run)
        upstream.cancellations.append("second")
        assert session.ask("And now?").message.text == "fine"


def test_sync_session_passes_context_variables_to_the_loop():
    """The context at the time of a call counts for it, also after the block of a run."""
    trace, seen_traces = ContextVar("trace", default="none"), []

    class TracingUpstream(ScriptedUpstream):
        @asynccontextmanager
        async def send(self, request):
            seen_traces.append(trace.get())
            async with super().send(request) as reply:
                yield reply

    with open_sync_engine(TracingUpstream(["one", "two", "three"])) as engine:
        session = engine.session("tide")
        trace.set("t-1")
        session.ask("How high is it?")
        with session.run("And now?") as run:
            list(run)
        trace.set("t-2")
        session.ask("And now?")
    assert seen_traces == ["t-1", "t-1", "t-2"]


INTERRUPTED_PROGRAM = """
import threading
from holdfast.engine.sync import open_engine
from holdfast.store.memory import MemoryStore
from silent_upstream import SilentUpstream

try:
    with open_engine(MemoryStore(), upstream=SilentUpstream(), api="anthropic", model="claude-opus-5-5") as engine:
        engine.session("tide").ask("How high is it?")
except KeyboardInterrupt:
    print("interrupted", [thread.name for thread in threading.enumerate() if thread.name == "holdfast"])
"""
SILENT_UPSTREAM_MODULE = """
import anyio
from contextlib import asynccontextmanager

class SilentUpstream:
    @asynccontextmanager
    async def send(self, sent):
        print("asked", flush=True)
        try:
            await anyio.sleep_forever()
            yield
        finally:
            print("left", flush=True)
"""


def test_sync_engine_ends_its_thread_on_ctrl_c(tmp_path):
    """The call is cancelled, the thread ends, and the program gets ``KeyboardInterrupt``."""
    (tmp_path / "silent_upstream.py").write_text(SILENT_UPSTREAM_MODULE)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED_PROGRAM], stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout.readline() == "asked\n"
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out == "left\ninterrupted []\n"
    assert child.returncode == 0


@pytest.mark.timeout(60)
def test_open_engine_passes_on_ctrl_c_while_its_loop_starts(monkeypatch):
    """Ctrl-C before the loop is ready is raised, and the loop ends by itself."""
    serve = sync._serve_portal

    def serve_slowly(*args):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(sync.WAIT_SLICE_SECONDS)
        serve(*args)

    monkeypatch.setattr(sync, "_serve_portal", serve_slowly)
    with pytest.raises(KeyboardInterrupt), open_sync_engine(WaitingUpstream()):
        pytest.fail("there is no loop yet")


CALLS = {
    "ask": lambda _, session: session.ask("And now?"),
    "append": lambda _, session: session.append("And now?"),
    "run": lambda _, session: session.run("And now?").__enter__(),
    "compact": lambda _, session: session.compact(),
    "report": lambda _, session: session.report(),
    "close": lambda _, session: session.close(),
    "session": lambda engine, _: engine.session("tide"),
}


@pytest.mark.parametrize("call_name", CALLS)
def test_sync_session_raises_in_a_forked_child(call_name):
    """The loop's thread does not exist in a forked child, which would wait for ever; the parent is not affected."""
    with open_sync_engine(["one", "two"]) as engine:
        session = engine.session("tide")
        session.ask("How high is it?")

        def run_in_child():
            with pytest.raises(OperationAborted, match=r"another process.* open it here too"):
                CALLS[call_name](engine, session)

        assert wait_for_child(run_in_child) == 0
        assert session.ask("And now?").message.text == "two"


def test_sync_engine_closed_in_a_forked_child_leaves_the_parent_working():
    """Leaving the block in a child closes nothing of the parent, and the child can open an engine of its own."""

    def run_in_child():
        with open_sync_engine(["ours"]) as engine:
            assert engine.session("tide").ask("How high is it?").message.text == "ours"
        block.close()

    with ExitStack() as block:
        engine = block.enter_context(open_sync_engine(["theirs"]))
        assert wait_for_child(run_in_child) == 0
        assert engine.session("tide").ask("How high is it?").message.text == "theirs"


LATE_ANSWER_PROGRAM = """
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


@pytest.mark.parametrize(("kind", "output"), [("waited for", "7 m 2\n"), ("daemon", "")])
def test_sync_run_stores_an_answer_after_the_main_thread_ended(kind, output):
    """Python waits for the thread that asked; a daemon thread does not keep the program running."""
    completed = subprocess.run(
        [sys.executable, "-c", LATE_ANSWER_PROGRAM, kind], capture_output=True, text=True, timeout=60, check=False
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, output, "")


INTERRUPTED_STOP_PROGRAM = """
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


def test_run_event_loop_exits_when_ctrl_c_hits_its_stop():
    """A loop that was never told to stop keeps neither the program nor its worker threads alive."""
    completed = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_STOP_PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "worked\ninterrupted\n", "")
