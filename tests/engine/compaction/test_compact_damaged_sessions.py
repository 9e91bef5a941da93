"""A damaged session is repaired before it is compacted, if that loses nothing, and the repair is reported."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.errors import StoreCorrupt
from holdfast.messages.message import Message
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedUpstream

CLAUDE = get_target("anthropic", "claude-sonnet-4-5", window=20_000)


def damage(path, change, position):
    """Change the row of the session's message at ``position`` behind the store's back."""
    chosen = f"SELECT seq FROM entries WHERE kind = 'message' ORDER BY seq LIMIT 1 OFFSET {position}"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(f"UPDATE entries SET {change} WHERE seq = ({chosen})")


async def fill(session, turns=30):
    """Append turns to a session."""
    for turn in range(turns):
        text = "".join(f"line {line} of turn {turn}\n" for line in range(80))
        await session.append(Message.from_text("user", text), Message.from_text("assistant", "Done."))


def list_repairs(seen_events):
    """Return the reasons of the repairs among the events."""
    return [
        event.why for event in seen_events if isinstance(event, events.NoticeGiven) and event.rule == "session-repaired"
    ]


def open_engine(path, seen_events=None):
    """Open an engine on the store at ``path``."""
    listen = None if seen_events is None else seen_events.append
    return Engine.open(path, upstream=ScriptedUpstream([]), target=CLAUDE, listen=listen)


def test_session_repairs_damage_when_it_is_opened(tmp_path):
    """A damaged session opens, reports the repair once, and can be compacted."""
    seen_events = []

    async def main():
        async with open_engine(tmp_path / "s.db") as engine:
            await fill(await engine.session("k"))
        damage(tmp_path / "s.db", "parent = parent - 1", 7)
        async with open_engine(tmp_path / "s.db", seen_events) as engine:
            session = await engine.session("k")
            return await session.compact()

    assert run_on_fake_clock(main).outcome == "compacted"
    assert len(list_repairs(seen_events)) == 1


def test_session_repairs_damage_when_hidden_messages_are_read(tmp_path):
    """Messages that a compaction hides are first read by an undo, which repairs them."""
    seen_events = []

    async def main():
        async with open_engine(tmp_path / "s.db") as engine:
            session = await engine.session("k")
            await fill(session)
            await session.compact()
        damage(tmp_path / "s.db", "parent = parent - 1", 7)
        async with open_engine(tmp_path / "s.db", seen_events) as engine:
            session = await engine.session("k")
            assert list_repairs(seen_events) == []
            await session.undo()
            return (await session.compact()).outcome, len(session.journal.state.history.sized_messages)

    assert run_on_fake_clock(main) == ("compacted", 60)
    assert len(list_repairs(seen_events)) == 1


def test_session_does_not_open_when_a_repair_would_lose_a_message(tmp_path):
    """Nothing is removed without being asked: the error names the repair command."""

    async def main():
        async with open_engine(tmp_path / "s.db") as engine:
            await fill(await engine.session("k"))
        damage(tmp_path / "s.db", "body = x'00'", 7)
        async with open_engine(tmp_path / "s.db") as engine:
            with pytest.raises(StoreCorrupt, match="holdfast repair"):
                await engine.session("k")

    run_on_fake_clock(main)
