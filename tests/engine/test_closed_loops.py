"""An engine whose event loop was closed in the middle of its work goes on in the next one, and is closed there."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, sys
from contextlib import asynccontextmanager
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import ScriptedUpstream

class Hanging(ScriptedUpstream):
    asked = 0

    @asynccontextmanager
    async def send(self, sent):
        self.asked += 1
        if self.asked == 1:
            await asyncio.get_running_loop().create_future()
        async with super().send(sent) as reply:
            yield reply

upstream, opus = Hanging(["one", "two", "three"]), get_target("anthropic", "claude-opus-5-5", window=32_000)
opening = Engine.open(MemoryStore(), upstream=upstream, target=opus, writers=[SummaryWriter(upstream, opus)])

async def begin():
    engine = await opening.__aenter__()
    session = await engine.session("one")
    await session.append(*[f"note {number} " + "word " * 2_000 for number in range(12)])
    work = [asyncio.create_task(session.compact() if sys.argv[1] == "compacts" else session.ask("Go."))]
    await asyncio.sleep(0.2)
    work.append(asyncio.create_task(session.wait_for_compaction()))
    await asyncio.sleep(0.1)
    return engine, session, work

async def go_on():
    await session.wait_for_compaction()
    await session.append("Am I heard?")
    return (await session.ask()).message.text, session.journal.state.history.messages[-2].text

async def end():
    await opening.__aexit__(None, None, None)
    return "closed"

loop = asyncio.new_event_loop()
engine, session, work = loop.run_until_complete(begin())
loop.close()
for step in ((go_on, end) if sys.argv[2] == "used" else (end,)):
    print(asyncio.run(asyncio.wait_for(step(), 20)))
sys.stdout.flush()
os._exit(0)  # there is no loop for what was left to end in
"""


@pytest.mark.parametrize("use", ["used", "closed"])
@pytest.mark.parametrize("doing", ["compacts", "answers"])
def test_what_was_under_way_in_a_closed_loop_is_over(doing, use):
    """Nobody waits for it: what is said next is heard and answered, and closing waits for nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, doing, use],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    answered = ["('one', 'Am I heard?')"] if use == "used" else []
    assert done.stdout.splitlines() == [*answered, "closed"], done.stderr
