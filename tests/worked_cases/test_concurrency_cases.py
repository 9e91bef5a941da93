"""The worked cases about lanes, waiting for compactions and their timeouts beside this checkout, where they are there.

An adapter plays a case on a clock that costs nothing and tells what it saw in the words of the case.

``snapshot`` is played by an engine. The others ask the lanes and the record of compactions themselves: what they tell
(the name of a lane, whether a timeout counts as one of a compaction, at which event a wait ends) is inside an engine,
which shows only that runs go one after the other and that nothing is lost.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from holdfast.config import get_target
from holdfast.engine.compaction.inflight import CompactionTracker, extend_deadline, is_compaction_timeout
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.concurrency.lanes_and_permits import Lanes, Permits
from holdfast.engine.engine import Engine
from holdfast.errors import OperationAborted
from holdfast.messages.message import Message
from holdfast.state.entries import CompactionEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider
from holdfast.testing.upstream import ProviderUpstream

_FILE = Path(__file__).parents[3] / "shared" / "cases" / "openclaw.json"

EXTRA = 180.0
"""Seconds that a compaction under way gives a run."""

DEVIATIONS = {
    "lane-04": "who holds a lane goes in again at once, so inner work needs no lane by another name",
}
"""Cases that we answer otherwise on purpose, and why; each of them must differ."""


def _timeout(case):
    asked = case["params"]
    return is_compaction_timeout(timed_out=asked["timeout"], pending=asked["pending"], in_flight=asked["in_flight"])


def _snapshot(case):
    """A session's log is what a run goes on with: as it was where a compaction was on its way, else as it is now."""
    asked = case["params"]
    words = asked["pre"] if asked["flagged"] else asked["current"]
    session, source = ("s-old", "pre-compaction") if asked["flagged"] else ("s-new", "current")
    return {"snapshot": run_on_fake_clock(_timed_out, words, asked["flagged"]), "session": session, "source": source}


async def _timed_out(words, compacts):
    """Return the newest words that the next request has after a timeout, in a compaction or in a request."""
    slow = ProviderUpstream(Provider(), latency=20)
    place = get_target("anthropic", "claude-sonnet-4-5", window=30_000)
    async with Engine.open(MemoryStore(), upstream=slow, target=place, writers=[SummaryWriter(slow, place)]) as engine:
        session = await engine.session("timeout")
        for number in range(20 if compacts else 0):
            said = "".join(f"line {line} of {number}\n" for line in range(150))
            await session.append(Message.from_text("user", said), Message.from_text("assistant", "Done."))
        await session.append(*(Message.from_text("user", word) for word in words))
        before = session.journal.state
        with anyio.move_on_after(10) as scope:
            await (session.compact() if compacts else session.ask())
        assert scope.cancelled_caught
        assert list(session.journal.state.history.sized_messages)[: len(before.history.sized_messages)] == list(
            before.history.sized_messages
        )
        assert not any(isinstance(entry.body, CompactionEntry) for entry in engine.resources.store.read_path("timeout"))
        return [slot.message.text for slot in (await session.prepare()).messages][-len(words) :]


def _grace(case):
    asked, deadline = case["params"], 600.0
    now = deadline + (EXTRA if asked["grace_used"] else 0)
    busy = asked["pending"] or asked["in_flight"]
    return "extend" if extend_deadline(deadline, EXTRA, now, busy=busy) > now else "abort"


def _aggregate(case):
    asked = case["params"]

    async def main():
        flying = CompactionTracker()
        flying.start()
        flying.end("compacted", will_retry=True)
        if asked["retry_promise"] == "resolved":
            flying.settle_run()
        return await flying.wait(asked["aggregate_ms"] / 1_000)

    return {"timed_out": not run_on_fake_clock(main)}


def _lane(case):
    async def main():
        lanes = Lanes()
        async with lanes.hold(case["params"]["key"]):
            [held] = lanes._gates
        return held

    return run_on_fake_clock(main)


# -- queues ------------------------------------------------------------------------------------------------------------


def _queue(case):
    asked = case["params"]
    if "nesting" in asked:
        return {
            "result": run_on_fake_clock(_same_lane if "another task in lane" in asked["nesting"] else _lane_then_permit)
        }
    return (
        run_on_fake_clock(_outcomes, asked["tasks"])
        if isinstance(asked["tasks"], list)
        else run_on_fake_clock(_order, asked)
    )


async def _order(asked):
    lanes, told = Lanes(), []

    async def work(number):
        async with lanes.hold(asked["lane"]):
            told.append(f"s{number}")
            await anyio.sleep(1)
            told.append(f"e{number}")

    async with anyio.create_task_group() as group:
        for number in range(asked["tasks"]):
            group.start_soon(work, number)
    return {"order": told}


async def _outcomes(tasks):
    lanes, told = Lanes(), []
    for task in tasks:
        try:
            async with lanes.hold("L2"):
                told.append(_done(task))
        except RuntimeError as error:
            told.append(str(error))
    return dict(zip(("first", "second"), told, strict=True))


def _done(task):
    if task == "throws":
        raise RuntimeError("boom")
    return "fine"


async def _lane_then_permit():
    lanes, permits = Lanes(), Permits(1)
    async with lanes.hold("session:x"), permits.hold():
        return "done"


async def _same_lane():
    lanes = Lanes()

    async def inner():
        async with lanes.hold("X"):
            pass

    with anyio.move_on_after(60) as scope:
        async with lanes.hold("X"), anyio.create_task_group() as group:
            group.start_soon(inner)
    return "deadlock" if scope.cancelled_caught else "run inline"


# -- waiting -----------------------------------------------------------------------------------------------------------

_END = re.compile(r"end\((.*)\)")


def _happen(flying, event, abort):
    """Let one event of a case happen."""
    if event == "start":
        flying.start(abort)
    elif said := _END.fullmatch(event):
        told = dict(pair.split("=") for pair in said[1].split(","))
        real = told.get("aborted") != "true" and told.get("result") != "null"
        flying.end("compacted" if real else "cancelled", will_retry=told.get("willRetry") == "true")
    else:
        flying.settle_run()


def _retry(case):
    return run_on_fake_clock(_waiting, case["params"])


async def _waiting(asked):
    flying, aborted, waited = CompactionTracker(), [], []
    seen = {"resolves_after_event": None}

    async def wait():
        try:
            await flying.wait()
        except OperationAborted:
            waited.append("rejects AbortError")
        else:
            waited.append("resolves")

    async with anyio.create_task_group() as group:
        for number, event in enumerate(asked["events"], 1):
            _happen(flying, event, lambda: aborted.append(1))
            if number == 1:
                group.start_soon(wait)
            await anyio.sleep(1)
            if waited and seen["resolves_after_event"] is None:
                seen["resolves_after_event"] = number
        if asked.get("then") == "unsubscribe":
            flying.close()
            await anyio.sleep(1)
            await wait()
            seen["later_waits"] = waited[-1].replace("rejects", "reject")
    seen["wait"] = waited[0] if waited else await _idle(flying)
    return {**seen, "compaction_count": flying.status.completed_count, "abort_compaction_called": len(aborted)}


async def _idle(flying):
    """Return how an idle wait ends, and whether a compaction of the same tick is seen by it."""
    began = anyio.current_time()
    await flying.wait()
    at_once = anyio.current_time() == began

    async def starts():
        flying.start()
        await anyio.sleep(5)
        flying.end("compacted")

    async with anyio.create_task_group() as group:
        group.start_soon(starts)
        await flying.wait()
    looked = anyio.current_time() - began == 5
    await checkpoint()
    return "resolves on the next microtask, re-checking state first" if at_once and looked else "resolves"


_ADAPTERS = {
    "compaction-timeout": _timeout,
    "snapshot": _snapshot,
    "grace": _grace,
    "aggregate-wait": _aggregate,
    "lanes": _lane,
    "queue": _queue,
    "retry-state": _retry,
}


def _cases():
    every = json.loads(_FILE.read_text()) if _FILE.exists() else []
    return [case for case in every if case["area"] in _ADAPTERS]


def _agrees(found, wanted):
    """Return whether all that a case says is so; where it leaves a choice, one of them is."""
    if not isinstance(wanted, dict):
        return found == wanted
    if "result" in wanted:
        return found["result"] in wanted["result"]
    return all(found[key] == value for key, value in wanted.items())


if _cases():

    @pytest.mark.parametrize("case", _cases(), ids=lambda case: case["id"])
    def test_case(case):
        """A case comes out as advised or expected; one we deviate from on purpose does not."""
        found, wanted = _ADAPTERS[case["area"]](case), case.get("recommended", case["expect"])
        assert _agrees(found, wanted) is (case["id"] not in DEVIATIONS), (found, wanted)

    def test_deviations_are_cases():
        """Every deviation names a case that is there."""
        assert DEVIATIONS.keys() <= {case["id"] for case in _cases()}
