"""The error messages on the troubleshooting page are those that the code raises."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group, sleep, to_thread

from holdfast import Engine, Message, Policy, config, errors, open_store, plan
from holdfast.engine.compaction.summarizer import SummaryWriter, write_summary
from holdfast.engine.concurrency.lanes_and_permits import Lanes
from holdfast.engine.upstream.upstream import Upstream
from holdfast.formats import read_recording
from holdfast.messages.parts import ToolCall
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.anthropic import messages as anthropic
from holdfast.state.entries import Entry, MessageEntry, NoteEntry
from holdfast.state.plan import SummaryRequest
from holdfast.store import base
from holdfast.store.base import Quota
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedReply, ScriptedUpstream

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
QUOTED = re.findall(r"^> (.+)$", PAGE, re.MULTILINE)
ERRORS = sorted(
    {
        found.__name__
        for module in (errors, base)
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, errors.HoldfastError)
    }
)


def plan_in_small_window(size: int, policy: str) -> None:
    target = config.get_target("anthropic", "claude-sonnet-4-5", window=size)
    plan([Message.from_text("user", "hello")], target, Policy.preset(policy))


def create_store(path: str = "agent.db") -> None:
    with open_store(path) as store:
        store.create_session("one")


def ask_session(
    upstream: Upstream, *texts: str, fields: dict[str, Any] | None = None, window: int | None = None
) -> None:
    async def ask() -> None:
        target = config.get_target("anthropic", "claude-opus-5", window=window)
        async with Engine.open(":memory:", upstream=upstream, target=target, fields=fields or {}) as engine:
            await (await engine.session("one")).ask(*texts)

    run_on_fake_clock(ask)


def raise_authentication_error() -> None:
    body = b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}'
    ask_session(ScriptedUpstream([ScriptedReply((body,), 401)]), "hello")


def raise_overflow() -> None:
    body = b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}'
    ask_session(ScriptedUpstream([ScriptedReply((body,), 400)] * 9), "hello")


def ask_with_invalid_tool() -> None:
    ask_session(
        ScriptedUpstream([]), "hello", fields={"tools": [{"name": "two words", "input_schema": {"type": "object"}}]}
    )


def raise_compaction_failure() -> None:
    target = config.get_target("anthropic", "claude-opus-5")
    head = [SizedMessage(Message.from_text("user", "Keep kelp.py as it is."))]

    async def write() -> None:
        await write_summary(head, SummaryRequest(0, 1, 1_000), [SummaryWriter(ScriptedUpstream(["No."] * 2), target)])

    run_on_fake_clock(write)


def clear_waiting_lane() -> None:
    lanes = Lanes()

    async def wait() -> None:
        async with lanes.hold("one"):
            await sleep(1)
            lanes.turn_away_waiting("one")

    async def scenario() -> None:
        async with create_task_group() as group:
            group.start_soon(wait)
            await sleep(0.5)
            async with lanes.hold("one"):
                pass

    raise_first_error(scenario)


def open_session_in_another_loop() -> None:
    async def scenario() -> None:
        async with Engine.open(
            ":memory:", upstream=ScriptedUpstream([]), api="anthropic", model="claude-opus-5"
        ) as engine:
            await to_thread.run_sync(asyncio.run, engine.session("one"))

    asyncio.run(scenario())


def hold_closed_lane() -> None:
    lanes = Lanes()

    async def scenario() -> None:
        await lanes.drain()
        async with lanes.hold("one"):
            pass

    run_on_fake_clock(scenario)


def exceed_deadline() -> None:
    lanes = Lanes()

    async def scenario() -> None:
        async with lanes.hold("one", deadline=5):
            await sleep(9)

    run_on_fake_clock(scenario)


def read_answer_of_unfinished_run() -> None:
    async def leave() -> None:
        async with Engine.open(
            ":memory:", upstream=ScriptedUpstream(["yes"]), api="anthropic", model="claude-opus-5"
        ) as engine:
            async with (await engine.session("one")).run("hello") as run:
                pass
            _ = run.answer

    run_on_fake_clock(leave)


def raise_first_error(work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` and raise the first error of its task group."""
    try:
        run_on_fake_clock(work)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def get_unknown_session() -> None:
    with open_store("agent.db") as store:
        store.get_session("two")


def append_to_unknown_parent() -> None:
    create_store()
    with open_store("agent.db") as store:
        store.append_entries("one", [Entry("b", "a", NoteEntry("lost"))])


def append_mistyped_call() -> None:
    create_store()
    with open_store("agent.db") as store:
        call = ToolCall("c", "bash", {"command": "ls"})
        store.append_entries("one", [Entry("a", None, MessageEntry(SizedMessage(Message("assistant", (call,)))))])


def hold_lease_twice() -> None:
    create_store()
    with (
        open_store("agent.db") as first,
        open_store("agent.db") as second,
        first.hold_lease("one"),
        second.hold_lease("one"),
    ):
        pass


def write_to_read_only_store() -> None:
    with open_store("agent.db", readonly=True) as store:
        store.create_session("one")


def exceed_quota() -> None:
    create_store()
    with open_store("agent.db", quota=Quota(session_bytes=10)) as store:
        store.append_entries("one", [Entry("b", None, NoteEntry("more than ten bytes"))])


def open_newer_store() -> None:
    create_store()
    db = sqlite3.connect("agent.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    get_unknown_session()


def open_text_file_as_store() -> None:
    Path("notes.txt").write_text("hello\n" * 200)
    with open_store("notes.txt") as store:
        store.list_sessions()


def write_to_deleted_store() -> None:
    with open_store("agent.db") as store:
        store.create_session("one")
        Path("agent.db").unlink()
        store.create_session("two")


def list_closed_store() -> None:
    store = open_store("agent.db")
    store.close()
    store.list_sessions()


def reach_no_server():
    """Open a store on a server that is not there: nothing listens at port 1."""
    with open_store("postgresql://me:secret@127.0.0.1:1/agents") as store:
        store.list_sessions()


CASES: tuple[tuple[str, Callable[[], object]], ...] = (
    ("WindowTooSmall", lambda: plan_in_small_window(4_000, "holdfast")),
    ("WindowTooSmall", lambda: plan_in_small_window(8_000, "openclaw")),
    ("UnknownPolicy", lambda: Policy.preset("lru")),
    ("FormatError", lambda: read_recording(b"")),
    ("UnrecognizedContent", lambda: read_recording(b'{"mapping": {}, "current_node": "x"}')),
    ("FormatError", lambda: anthropic.decode_message(b'{"role": "user", "content": 5}')),
    ("ConfigError", lambda: config.parse_catalog('[[model]]\nmatch = "qwen3*"\nwindows = 1\n', "holdfast.toml")),
    ("ConfigError", lambda: open_store("mysql://localhost/agents")),
    ("InvalidRequest", ask_with_invalid_tool),
    ("UpstreamError", raise_authentication_error),
    ("ContextOverflow", raise_overflow),
    ("CompactionFailed", raise_compaction_failure),
    ("OperationAborted", read_answer_of_unfinished_run),
    ("OperationAborted", open_session_in_another_loop),
    ("LaneCleared", clear_waiting_lane),
    ("LaneClosed", hold_closed_lane),
    ("DeadlineExceeded", exceed_deadline),
    ("UnknownId", get_unknown_session),
    ("LogConflict", append_to_unknown_parent),
    ("LogConflict", append_mistyped_call),
    ("StoreLocked", hold_lease_twice),
    ("StoreReadOnly", write_to_read_only_store),
    ("StoreUnavailable", reach_no_server),
    ("QuotaExceeded", exceed_quota),
    ("StoreCorrupt", open_newer_store),
    ("StoreCorrupt", open_text_file_as_store),
    ("StoreReplaced", write_to_deleted_store),
    ("StoreError", list_closed_store),
)


def test_every_error_class_is_on_the_page():
    """Each error class is named on the page, and each except the root has a case here."""
    assert all(f"`{name}`" in PAGE for name in ERRORS)
    assert {name for name, _ in CASES} | {"HoldfastError"} == set(ERRORS)


def test_every_quoted_message_has_a_case():
    """The page quotes as many messages as there are cases, so no quotation goes unchecked."""
    assert len(QUOTED) == len(set(QUOTED)) == len(CASES)


@pytest.mark.parametrize(("kind", "raise_error"), CASES)
def test_quoted_messages_equal_the_raised_ones(kind, raise_error, tmp_path, monkeypatch):
    """A quoted message is word for word the text of its error, folders aside."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.HoldfastError) as raised:
        raise_error()
    assert type(raised.value).__name__ == kind
    assert str(raised.value).replace(f"{Path.cwd()}/", "") in QUOTED
