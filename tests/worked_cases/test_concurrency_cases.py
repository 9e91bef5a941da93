"""Worked cases about lanes, waits for compactions and their timeouts; run where the corpus is present.

An adapter runs a case on a fake clock and returns what it observed in the terms of the case.

``snapshot`` is run by an engine. The others use the lanes and the compaction tracker directly: what the cases ask for
(the name of a lane, whether a timeout belongs to a compaction, at which event a wait ends) is internal to an engine,
which shows only that runs are serialized and nothing is lost.
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
"""Seconds by which a compaction in flight extends the deadline of a run."""

DEVIATIONS = {
    "lane-04": "a lane is reentrant for its holder, so nested work needs no lane of another name",
}
"""Cases in which Holdfast deviates on purpose, and why; each of them must differ."""


def _run_timeout_case(case):
    params = case["params"]
    return is_compaction_timeout(timed_out=params["timeout"], pending=params["pending"], in_flight=params["in_flight"])


def _run_snapshot_case(case):
    """Return which messages a run continues with: those before an unfinished compaction, or the current ones."""
    params = case["params"]
    texts = params["pre"] if params["flagged"] else params["current"]
    session, source = ("s-old", "pre-compaction") if params["flagged"] else ("s-new", "current")
    return {"snapshot": run_on_fake_clock(_time_out, texts, params["flagged"]), "session": session, "source": source}


async def _time_out(texts, is_compacting):
    """Return the newest texts of the next request after a timeout, in a compaction or in a request."""
    slow_upstream = ProviderUpstream(Provider(), latency=20)
    target = get_target("anthropic", "claude-sonnet-4-5", window=30_000)
    async with Engine.open(
        MemoryStore(), upstream=slow_upstream, target=target, writers=[SummaryWriter(slow_upstream, target)]
    ) as engine:
        session = await engine.session("timeout")
        for number in range(20 if is_compacting else 0):
            text = "".join(f"line {line} of {number}\n" for line in range(150))
            await session.append(Message.from_text("user", text), Message.from_text("assistant", "Done."))
        await session.append(*(Message.from_text("user", text) for text in texts))
        before = session.journal.state
        with anyio.move_on_after(10) as scope:
            await (session.compact() if is_compacting else session.ask())
        assert scope.cancelled_caught
        assert list(session.journal.state.history.sized_messages)[: len(before.history.sized_messages)] == list(
            before.history.sized_messages
        )
        assert not any(isinstance(entry.body, CompactionEntry) for entry in engine.resources.store.read_path("timeout"))
        return [sized.message.text for sized in (await session.prepare()).messages][-len(texts) :]


def _run_grace_case(case):
    params, deadline = case["params"], 600.0
    now = deadline + (EXTRA if params["grace_used"] else 0)
    busy = params["pending"] or params["in_flight"]
    return "extend" if extend_deadline(deadline, EXTRA, now, busy=busy) > now else "abort"


def _run_aggregate_case(case):
    params = case["params"]

    async def main():
        tracker = CompactionTracker()
        tracker.start()
        tracker.end("compacted", will_retry=True)
        if params["retry_promise"] == "resolved":
            tracker.settle_run()
        return await tracker.wait(params["aggregate_ms"] / 1_000)

    return {"timed_out": not run_on_fake_clock(main)}


def _run_lane_case(case):
    async def main():
        lanes = Lanes()
        async with lanes.hold(case["params"]["key"]):
            [lane_name] = lanes._gates
        return lane_name

    return run_on_fake_clock(main)


# -- queues ------------------------------------------------------------------------------------------------------------


def _run_queue_case(case):
    params = case["params"]
    if "nesting" in params:
        return {
            "result": run_on_fake_clock(
                _hold_same_lane_twice if "another task in lane" in params["nesting"] else _hold_lane_then_permit
            )
        }
    return (
        run_on_fake_clock(_record_outcomes, params["tasks"])
        if isinstance(params["tasks"], list)
        else run_on_fake_clock(_record_order, params)
    )


async def _record_order(params):
    lanes, events = Lanes(), []

    async def scenario(number):
        async with lanes.hold(params["lane"]):
            events.append(f"s{number}")
            await anyio.sleep(1)
            events.append(f"e{number}")

    async with anyio.create_task_group() as group:
        for number in range(params["tasks"]):
            group.start_soon(scenario, number)
    return {"order": events}


async def _record_outcomes(tasks):
    lanes, outcomes = Lanes(), []
    for task in tasks:
        try:
            async with lanes.hold("L2"):
                outcomes.append(_run_task(task))
        except RuntimeError as error:
            outcomes.append(str(error))
    return dict(zip(("first", "second"), outcomes, strict=True))


def _run_task(task):
    if task == "throws":
        raise RuntimeError("boom")
    return "fine"


async def _hold_lane_then_permit():
    lanes, permits = Lanes(), Permits(1)
    async with lanes.hold("session:x"), permits.hold():
        return "done"


async def _hold_same_lane_twice():
    lanes = Lanes()

    async def inner():
        async with lanes.hold("X"):
            pass

    with anyio.move_on_after(60) as scope:
        async with lanes.hold("X"), anyio.create_task_group() as group:
            group.start_soon(inner)
    return "deadlock" if scope.cancelled_caught else "run inline"


# -- waiting -----------------------------------------------------------------------------------------------------------

_END_EVENT_RE = re.compile(r"end\((.*)\)")


def _apply_event(tracker, event, abort):
    """Apply one event of a case to the tracker."""
    if event == "start":
        tracker.start(abort)
    elif match := _END_EVENT_RE.fullmatch(event):
        fields = dict(pair.split("=") for pair in match[1].split(","))
        is_compacted = fields.get("aborted") != "true" and fields.get("result") != "null"
        tracker.end("compacted" if is_compacted else "cancelled", will_retry=fields.get("willRetry") == "true")
    else:
        tracker.settle_run()


def _run_retry_case(case):
    return run_on_fake_clock(_wait_through_events, case["params"])


async def _wait_through_events(params):
    tracker, aborts, wait_results = CompactionTracker(), [], []
    observed = {"resolves_after_event": None}

    async def wait():
        try:
            await tracker.wait()
        except OperationAborted:
            wait_results.append("rejects AbortError")
        else:
            wait_results.append("resolves")

    async with anyio.create_task_group() as group:
        for number, event in enumerate(params["events"], 1):
            _apply_event(tracker, event, lambda: aborts.append(1))
            if number == 1:
                group.start_soon(wait)
            await anyio.sleep(1)
            if wait_results and observed["resolves_after_event"] is None:
                observed["resolves_after_event"] = number
        if params.get("then") == "unsubscribe":
            tracker.close()
            await anyio.sleep(1)
            await wait()
            observed["later_waits"] = wait_results[-1].replace("rejects", "reject")
    observed["wait"] = wait_results[0] if wait_results else await _wait_when_idle(tracker)
    return {**observed, "compaction_count": tracker.status.completed_count, "abort_compaction_called": len(aborts)}


async def _wait_when_idle(tracker):
    """Return how an idle wait ends, and whether it notices a compaction that starts in the same tick."""
    start = anyio.current_time()
    await tracker.wait()
    returned_at_once = anyio.current_time() == start

    async def compact_for_five_seconds():
        tracker.start()
        await anyio.sleep(5)
        tracker.end("compacted")

    async with anyio.create_task_group() as group:
        group.start_soon(compact_for_five_seconds)
        await tracker.wait()
    waited_for_compaction = anyio.current_time() - start == 5
    await checkpoint()
    return (
        "resolves on the next microtask, re-checking state first"
        if returned_at_once and waited_for_compaction
        else "resolves"
    )


_ADAPTERS = {
    "compaction-timeout": _run_timeout_case,
    "snapshot": _run_snapshot_case,
    "grace": _run_grace_case,
    "aggregate-wait": _run_aggregate_case,
    "lanes": _run_lane_case,
    "queue": _run_queue_case,
    "retry-state": _run_retry_case,
}


def _load_cases():
    cases = json.loads(_FILE.read_text()) if _FILE.exists() else []
    return [case for case in cases if case["area"] in _ADAPTERS]


def _matches(found, expected):
    """Return whether every expected value was found; where a case allows several, one of them must be."""
    if not isinstance(expected, dict):
        return found == expected
    if "result" in expected:
        return found["result"] in expected["result"]
    return all(found[key] == value for key, value in expected.items())


if _load_cases():

    @pytest.mark.parametrize("case", _load_cases(), ids=lambda case: case["id"])
    def test_concurrency_case_matches_or_deviates_on_purpose(case):
        """Each case gives the recommended or expected result, and each deviation a different one."""
        found, expected = _ADAPTERS[case["area"]](case), case.get("recommended", case["expect"])
        assert _matches(found, expected) is (case["id"] not in DEVIATIONS), (found, expected)

    def test_deviations_name_existing_cases():
        """Each deviation names an existing case."""
        assert DEVIATIONS.keys() <= {case["id"] for case in _load_cases()}
