"""Error messages on the page on troubleshooting are the ones that the code makes."""

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


def small_window(size: int, policy: str) -> None:
    place = config.get_target("anthropic", "claude-sonnet-4-5", window=size)
    plan([Message.from_text("user", "hello")], place, Policy.preset(policy))


def store_of_one(path: str = "agent.db") -> None:
    with open_store(path) as store:
        store.create_session("one")


def asked(upstream: Upstream, *said: str, fields: dict[str, Any] | None = None, window: int | None = None) -> None:
    async def ask() -> None:
        goal = config.get_target("anthropic", "claude-opus-5", window=window)
        async with Engine.open(":memory:", upstream=upstream, target=goal, fields=fields or {}) as engine:
            await (await engine.session("one")).ask(*said)

    run_on_fake_clock(ask)


def refused() -> None:
    told = b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}'
    asked(ScriptedUpstream([ScriptedReply((told,), 401)]), "hello")


def overflow() -> None:
    told = b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}'
    asked(ScriptedUpstream([ScriptedReply((told,), 400)] * 9), "hello")


def invalid() -> None:
    asked(ScriptedUpstream([]), "hello", fields={"tools": [{"name": "two words", "input_schema": {"type": "object"}}]})


def no_summary() -> None:
    target = config.get_target("anthropic", "claude-opus-5")
    head = [SizedMessage(Message.from_text("user", "Keep kelp.py as it is."))]

    async def write() -> None:
        await write_summary(head, SummaryRequest(0, 1, 1_000), [SummaryWriter(ScriptedUpstream(["No."] * 2), target)])

    run_on_fake_clock(write)


def cleared() -> None:
    lanes = Lanes()

    async def wait() -> None:
        async with lanes.hold("one"):
            await sleep(1)
            lanes.turn_away_waiting("one")

    async def work() -> None:
        async with create_task_group() as group:
            group.start_soon(wait)
            await sleep(0.5)
            async with lanes.hold("one"):
                pass

    first_of(work)


def elsewhere() -> None:
    async def work() -> None:
        async with Engine.open(
            ":memory:", upstream=ScriptedUpstream([]), api="anthropic", model="claude-opus-5"
        ) as engine:
            await to_thread.run_sync(asyncio.run, engine.session("one"))

    asyncio.run(work())


def closing() -> None:
    lanes = Lanes()

    async def work() -> None:
        await lanes.drain()
        async with lanes.hold("one"):
            pass

    run_on_fake_clock(work)


def late() -> None:
    lanes = Lanes()

    async def work() -> None:
        async with lanes.hold("one", deadline=5):
            await sleep(9)

    run_on_fake_clock(work)


def unread() -> None:
    async def leave() -> None:
        async with Engine.open(
            ":memory:", upstream=ScriptedUpstream(["yes"]), api="anthropic", model="claude-opus-5"
        ) as engine:
            async with (await engine.session("one")).run("hello") as going:
                pass
            _ = going.answer

    run_on_fake_clock(leave)


def first_of(work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` and raise the one error that its tasks raised together."""
    try:
        run_on_fake_clock(work)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def unknown_id() -> None:
    with open_store("agent.db") as store:
        store.get_session("two")


def conflict() -> None:
    store_of_one()
    with open_store("agent.db") as store:
        store.append_entries("one", [Entry("b", "a", NoteEntry("lost"))])


def mistyped() -> None:
    store_of_one()
    with open_store("agent.db") as store:
        call = ToolCall("c", "bash", {"command": "ls"})
        store.append_entries("one", [Entry("a", None, MessageEntry(SizedMessage(Message("assistant", (call,)))))])


def locked() -> None:
    store_of_one()
    with open_store("agent.db") as one, open_store("agent.db") as other, one.hold_lease("one"), other.hold_lease("one"):
        pass


def read_only() -> None:
    with open_store("agent.db", readonly=True) as store:
        store.create_session("one")


def over_quota() -> None:
    store_of_one()
    with open_store("agent.db", quota=Quota(session_bytes=10)) as store:
        store.append_entries("one", [Entry("b", None, NoteEntry("more than ten bytes"))])


def newer() -> None:
    store_of_one()
    db = sqlite3.connect("agent.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    unknown_id()


def no_database() -> None:
    Path("notes.txt").write_text("hello\n" * 200)
    with open_store("notes.txt") as store:
        store.list_sessions()


def gone() -> None:
    with open_store("agent.db") as store:
        store.create_session("one")
        Path("agent.db").unlink()
        store.create_session("two")


def closed() -> None:
    store = open_store("agent.db")
    store.close()
    store.list_sessions()


CASES: tuple[tuple[str, Callable[[], object]], ...] = (
    ("WindowTooSmall", lambda: small_window(4_000, "holdfast")),
    ("WindowTooSmall", lambda: small_window(8_000, "openclaw")),
    ("UnknownPolicy", lambda: Policy.preset("lru")),
    ("FormatError", lambda: read_recording(b"")),
    ("UnrecognizedContent", lambda: read_recording(b'{"trajectory": [], "history": []}')),
    ("FormatError", lambda: anthropic.decode_message(b'{"role": "user", "content": 5}')),
    ("ConfigError", lambda: config.parse_catalog('[[model]]\nmatch = "qwen3*"\nwindows = 1\n', "holdfast.toml")),
    ("ConfigError", lambda: open_store("postgres://localhost/agents")),
    ("InvalidRequest", invalid),
    ("UpstreamError", refused),
    ("ContextOverflow", overflow),
    ("CompactionFailed", no_summary),
    ("OperationAborted", unread),
    ("OperationAborted", elsewhere),
    ("LaneCleared", cleared),
    ("LaneClosed", closing),
    ("DeadlineExceeded", late),
    ("UnknownId", unknown_id),
    ("LogConflict", conflict),
    ("LogConflict", mistyped),
    ("StoreLocked", locked),
    ("StoreReadOnly", read_only),
    ("QuotaExceeded", over_quota),
    ("StoreCorrupt", newer),
    ("StoreCorrupt", no_database),
    ("StoreReplaced", gone),
    ("StoreError", closed),
)


def test_every_error_has_its_place():
    """Each error class is named on the page, and each but the root has a case here."""
    assert all(f"`{name}`" in PAGE for name in ERRORS)
    assert {name for name, _ in CASES} | {"HoldfastError"} == set(ERRORS)


def test_every_message_has_its_case():
    """As many messages are quoted on the page as there are cases: no quotation goes unchecked."""
    assert len(QUOTED) == len(set(QUOTED)) == len(CASES)


@pytest.mark.parametrize(("kind", "cause"), CASES)
def test_messages_are_the_real_ones(kind, cause, tmp_path, monkeypatch):
    """A quoted message is, word for word, what its error says; folders aside."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.HoldfastError) as told:
        cause()
    assert type(told.value).__name__ == kind
    assert str(told.value).replace(f"{Path.cwd()}/", "") in QUOTED
