"""A damaged session is repaired before it is compacted, if that loses nothing, and that is told."""

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
    """Say so many turns."""
    for turn in range(turns):
        said = "".join(f"line {line} of turn {turn}\n" for line in range(80))
        await session.append(Message.from_text("user", said), Message.from_text("assistant", "Done."))


def repairs(told):
    """Return what the listener was told of repairs."""
    return [event.why for event in told if isinstance(event, events.NoticeGiven) and event.rule == "session-repaired"]


def opened(path, told=None):
    """Return the engine on the store at ``path``."""
    listen = None if told is None else told.append
    return Engine.open(path, upstream=ScriptedUpstream([]), target=CLAUDE, listen=listen)


def test_compact_repairs_a_session_that_was_damaged_before_it_was_opened(tmp_path):
    """The session opens, says once what was repaired, and compacts."""
    told = []

    async def main():
        async with opened(tmp_path / "s.db") as engine:
            await fill(await engine.session("k"))
        damage(tmp_path / "s.db", "parent = parent - 1", 7)
        async with opened(tmp_path / "s.db", told) as engine:
            session = await engine.session("k")
            return await session.compact()

    assert run_on_fake_clock(main).outcome == "compacted"
    assert len(repairs(told)) == 1


def test_a_session_is_repaired_where_it_is_read_again(tmp_path):
    """What a compaction hides is not read when the session opens; taking that back reads it, repaired."""
    told = []

    async def main():
        async with opened(tmp_path / "s.db") as engine:
            session = await engine.session("k")
            await fill(session)
            await session.compact()
        damage(tmp_path / "s.db", "parent = parent - 1", 7)
        async with opened(tmp_path / "s.db", told) as engine:
            session = await engine.session("k")
            assert repairs(told) == []
            await session.undo()
            return (await session.compact()).outcome, len(session.journal.state.history.sized_messages)

    assert run_on_fake_clock(main) == ("compacted", 60)
    assert len(repairs(told)) == 1


def test_compact_raises_where_a_repair_would_lose_words(tmp_path):
    """Nothing is put aside without being asked for: the error names what does that."""

    async def main():
        async with opened(tmp_path / "s.db") as engine:
            await fill(await engine.session("k"))
        damage(tmp_path / "s.db", "body = x'00'", 7)
        async with opened(tmp_path / "s.db") as engine:
            with pytest.raises(StoreCorrupt, match="holdfast repair"):
                await engine.session("k")

    run_on_fake_clock(main)
