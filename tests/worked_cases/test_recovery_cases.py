"""The worked cases about recovery, retries and loops beside this checkout, where they are there.

A case is run by an engine, or planned, under the preset it is about.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from engine_runs import EngineRun, talk
from msgspec.structs import replace

from holdfast import Policy, apply, plan
from holdfast.agent.agent import load_agent_environment, make_session_workspace
from holdfast.agent.loop import run_agent
from holdfast.agent.workspace import allow_command
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.errors import ContextOverflow, UpstreamError
from holdfast.events import CompactionEnded, EditsDecided, RetryScheduled, ShrinkStarted
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.state.entries import CompactionEntry, Entry, FailureEntry, MessageEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import build_projection
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock as on_fake_clock
from holdfast.testing.provider import Provider
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.calls import ScriptedAnswer as Answered
from holdfast.testing.upstream import ProviderUpstream, ScriptedReply

_CASES = Path(__file__).parents[3] / "shared" / "cases"
_FILES = ("openclaw.json", "pi-opencode.json")
_AREAS = {
    "overflow-loop",
    "loop-guard-2026.9",
    "opencode.retry_delay",
    "opencode.retryable",
    "pi.auto_compaction",
}

DEVIATIONS = {
    "ovf-02": "a second compaction finds nothing more to fold, since the tail stays: the run ends after fewer requests",
    "ovf-06": "where a summary fails an extract takes its place, and the request goes out",
    "ovf-07": "nothing compacts behind the runner's back: a request refused after a compaction is compacted once more",
    "oc-retry-03": "a wait of our own has one cap, whether headers came or not",
    "pi-auto-06": "an answer that its length ended is kept: what the model said is in the log, to go on from",
}
"""Cases that we answer otherwise on purpose, and why; each of them must differ."""

OPENCLAW = Policy.preset("openclaw")
PI = Policy.preset("pi")
WHERE = get_target("anthropic", "claude-sonnet-4-5", window=200_000, setup=RequestSetup("f", 100, is_exact=True))


def _cases():
    if not (_CASES / "areas.json").exists():
        return []
    every = [case for name in _FILES for case in json.loads((_CASES / name).read_text())]
    return [case for case in every if case["area"] in _AREAS]


# -- what providers say ------------------------------------------------------------------------------------------------


_LONG = "prompt is too long: 210000 tokens > 200000 maximum"
_CEILING = "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9000"
_IN_STREAM = {"type": "error", "error": {"type": "invalid_request_error", "message": _LONG}}
_REPLIES = {
    "ok": "ok",
    "overflow": RefusalReply(400, "invalid_request_error", _LONG),
    "overflow_but_runtime_already_compacted_in_this_attempt": RefusalReply(400, "invalid_request_error", _LONG),
    "assistant_message_with_error_stop_and_overflow_text": ScriptedReply(
        (b"event: error\ndata: " + json.dumps(_IN_STREAM).encode() + b"\n\n",),
        headers={"content-type": "text/event-stream"},
    ),
    "compaction_failure_error": "ok",
    "prompt_error_non_overflow_with_stale_assistant_overflow_in_history": RefusalReply(
        400, "invalid_request_error", "roles must alternate"
    ),
    "retryable": RefusalReply(529, "overloaded_error", "Overloaded"),
    "413 TPM Limit 6000 Requested 9000 (one request larger than the whole limit)": RefusalReply(
        413, "rate_limit_exceeded", _CEILING
    ),
}
"""What the model's provider says at each attempt of a case."""


# -- an engine ---------------------------------------------------------------------------------------------------------


def _overflow_loop(case):
    """Return what became of a run over a history in which there is so much to compact and to cut as the case says."""
    asked = case["params"]
    policy = OPENCLAW.with_settings(**(OPENCLAW_2026_9 if asked.get("version") == "2026.9" else {}))
    if asked.get("oversized"):
        policy = policy.with_settings(
            preset={"loop_share": 0.0}
        )  # the guard in the loop would cut it before anything is refused
    attempts = [_REPLIES[attempt] for attempt in asked["attempts"]]
    fails = asked["attempts"] == ["compaction_failure_error"]
    made = EngineRun(
        _history(asked, fails=fails),
        [*attempts, *attempts[-1:] * 40],
        policy,
        written=[_REPLIES["retryable"]] * 9 if fails else (),
        window=50_000 if fails else 200_000,
    )
    assert not fails or made.events(CompactionEnded), "the writer of summaries was asked"
    done = {
        "model_calls": len(made.upstream.sent),
        "compactions": sum(event.overflow_step == "compact" for event in made.events(ShrinkStarted)),
        "truncations": sum(event.rule == "truncate" for event in made.events(EditsDecided)),
    }
    return done | _end(made.error, done)


def _history(asked, *, fails):
    """Return a conversation that can be compacted, or one that cannot; with a result that is too large, or without."""
    folds = "compacted" in asked.get("compact", ["compacted"]) or fails
    said = talk(20 if fails else 8, 1_200) if folds else []
    said = [*said, Message.from_text("assistant", _LONG)] if "stale" in asked["attempts"][0] else said
    if not asked.get("oversized"):
        return [*said, Message.from_text("user", "And now?")]
    call = ToolCall("big", "read", "{}")
    result = ToolResult("big", "read", (Text("a line of the log\n" * 17_000),))
    return [Message.from_text("user", "Read it."), Message("assistant", (call,)), Message("tool", (result,))]


def _end(error, done):
    """Return how a run ended, in the words of the cases."""
    if error is None:
        return {"outcome": "ok"}
    if isinstance(error, ContextOverflow):
        return {"outcome": "error", "kind": "context_overflow"}
    if "retry.max_retries" in str(error):
        return {"outcome": "error", "kind": "retry_limit", "max_model_calls_with_one_credential": done["model_calls"]}
    return {"outcome": "original_error_rethrown"}


def _loop_guard(case):
    """Let the agent run one command for each call of the case: whether it is told to stop, or ends the work."""
    calls = case["params"]["after_compaction_calls"]
    assert len({(tool, arguments) for tool, arguments, _ in calls}) == 1, "one command is run again and again"
    with TemporaryDirectory() as folder:
        Path(folder, "results").write_text("".join(f"{result}\n" for _, _, result in calls))
        outcome, results = anyio.run(_worked, Path(folder), len(calls))
    assert [text[:2] for text in results] == [result for _, _, result in calls]
    return {"abort": outcome.stop != "done" or any("of the same" in text for text in results)}


async def _worked(folder, times):
    """Return how an agent's work ended that gives the next line of a file so often, and what its tool gave."""
    command = {"command": "head -n 1 results; sed -i 1d results"}
    provider = Provider(script=[*[Answered("", (("bash", command),))] * times, Answered("Done.")])
    store, there = MemoryStore(), {"model": "claude-sonnet-4-5", "environment": load_agent_environment(folder)}
    async with Engine.open(store, upstream=ProviderUpstream(provider), api="anthropic", **there) as engine:
        session = await engine.session("work")
        place = make_session_workspace(session, folder, allow=allow_command)
        outcome = await run_agent(session, "Go.", place)
    said = [
        entry.body.sized_message.message for entry in store.read_path("work") if isinstance(entry.body, MessageEntry)
    ]
    return outcome, [get_result_text(result) for message in said for result in message.results]


OPENCODE = Policy.preset("opencode")


def _retry_delay(case):
    """Return the milliseconds that an engine waits before its retry of that number; nothing came where no headers."""
    attempt, headers = case["input"]["attempt"], case["input"]["headers"]
    failed = (
        ScriptedReply((b"busy",), 503, headers) if headers is not None else UpstreamError("no answer came", "network")
    )
    made = EngineRun([Message.from_text("user", "go")], [failed] * attempt + ["ok"], OPENCODE)
    return made.events(RetryScheduled)[-1].seconds * 1_000


def _retryable(case):
    """Return whether an engine sends a request again that was answered with this status."""
    made = EngineRun(
        [Message.from_text("user", "go")], [ScriptedReply((b"no",), case["input"]["status"]), "ok"], OPENCODE
    )
    return made.error is None and len(made.upstream.sent) == 2


# -- pi's automatic compaction -----------------------------------------------------------------------------------------


def _more(branch, *bodies):
    for body in bodies:
        branch = apply_entry(branch, Entry("", None, body))
    return branch


def _pi_overflow(case):
    """Refused for its size: the failure is an entry, no message; what comes next is the same turn, compacted."""
    text = case["input"]["last_assistant"]["errorMessage"]
    refusal = RefusalReply(400, "invalid_request_error", text)
    made = EngineRun(
        [*talk(), Message.from_text("user", "go")], [refusal, "ok"], PI.with_settings(preset={"tail_tokens": 1})
    )
    return {
        "reason": "overflow" if [event.overflow_step for event in made.events(ShrinkStarted)] == ["compact"] else None,
        "remove_error_message_from_live_context": text not in made.request,
        "session_keeps_it": any(text in failure.reason for failure in made.logged(FailureEntry)),
        "will_retry": len(made.upstream.sent) == 2,
        "then": "continue the same turn" if made.error is None and made.request.endswith("go") else None,
    }


def _pi_stale_usage(_):
    """Usage from before a compaction is none of what stands behind it."""
    said = [Message.from_text(role, f"{role} {at} " * 4_000) for at in range(3) for role in ("user", "assistant")]
    asked = plan(said[:-1], WHERE, PI).state.with_reported_usage(190_000)
    said += [Message.from_text("user", "on")]
    assert plan(said, WHERE, PI, state=asked).compaction is not None, "that usage alone makes it compact"
    behind = _more(asked, *[MessageEntry(build_sized_message(message)) for message in said[-2:]])
    behind = _more(behind, CompactionEntry(4, Message.from_text("user", "what was"), 5))
    return {"compact": plan(said, WHERE, PI, state=behind).compaction is not None}


def _pi_silent(case):
    """An answer of more than the window is told and not asked for again; the next request is compacted."""
    given = case["input"]
    usage = {"input_tokens": given["usage"]["input"], "cache_read_input_tokens": given["usage"]["cacheRead"]}
    said = [*talk(words=4_000), Message.from_text("user", "go")]  # as much as such a usage is reported for
    made = EngineRun(said, [_answer(given["stopReason"], usage)], PI)
    assert made.error is None
    branch = made.store.open_state("case")
    said = [*[slot.message for slot in branch.history.sized_messages], Message.from_text("user", "on")]
    where = get_target("anthropic", "claude-sonnet-4-5", window=given["window"])
    compacted = plan(said, where, PI, state=branch).compaction
    return {"reason": "overflow" if compacted is not None else None, "will_retry": len(made.upstream.sent) > 1}


def _pi_length(case):
    given = case["input"]
    answer = _answer("max_tokens", {"input_tokens": 900, "output_tokens": given["output"]})
    made = EngineRun([*talk(), Message.from_text("user", "go")], [answer], PI)
    return {"reason": "overflow" if made.events(ShrinkStarted) or made.events(CompactionEnded) else None}


def _answer(stop, usage):
    """Return an answer of Anthropic's API that ends so, with this usage."""
    told = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    ends = {"stop_reason": {"stop": "end_turn"}.get(stop, stop), "stop_sequence": None}
    events = [
        {"type": "message_start", "message": told | {"usage": {"output_tokens": 1} | usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ends, "usage": {"output_tokens": usage.get("output_tokens", 1)}},
        {"type": "message_stop"},
    ]
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    return ScriptedReply(tuple(lines), headers={"content-type": "text/event-stream"})


def _long_run():
    """Return one turn in which results have come to more than pi's line, with every call answered."""
    said = [Message.from_text("user", "go")]
    for number in range(32):
        call = ToolCall(f"c{number}", "read", f'{{"path":"{number}"}}')
        text = "".join(f"line {line} of {number}\n" for line in range(4_000))
        said += [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(text),)),))]
    return said


def _pi_mid_run(_):
    said = _long_run()
    made = plan(said, WHERE, PI)
    return {
        "compact_before_next_request": made.compaction is not None,
        "same_run": [slot.message for slot in build_projection(made.state)][-1].results != (),
    }


def _pi_queued(_):
    """What is said while a compaction is made stands behind it in the next request."""
    made = plan(_long_run(), WHERE, PI)
    assert made.compaction is not None
    said = [*_long_run(), Message.from_text("user", "and this")]
    sent = apply(said, plan(said, WHERE, PI, state=made.state))
    return {"continue_called": [message.text for message in sent].count("and this") == 1}


def _pi_race(case):
    """A compaction asked for while another is made waits for the whole turn: both end, and the turn has its answer."""
    outcomes = on_fake_clock(_two_at_once)
    return {"must_not": case["expect"]["must_not"] if outcomes == ("ok", 1, "idle") else outcomes}


async def _two_at_once():
    """Return what became of a turn that compacts first and of a compaction by hand in the middle of it."""
    upstream = ProviderUpstream(Provider(), latency=5)
    writer = SummaryWriter(ProviderUpstream(Provider(), latency=20), WHERE)
    place = replace(WHERE, limits=replace(WHERE.limits, window=30_000))
    async with Engine.open(MemoryStore(), upstream=upstream, target=place, writers=[writer]) as engine:
        session = await engine.session("race")
        await session.append(*_long_run()[:-1])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.ask, "and this")
            await anyio.sleep(10)
            assert session.compaction_tracker.status.in_flight, "the first compaction is being made"
            tasks.start_soon(session.compact)
        said = [message.text for message in session.journal.state.history.messages.slice(len(_long_run()) - 1)]
        idle = engine.resources.lanes.is_idle and not session.compaction_tracker.status.is_busy
        return said[-1].split()[0], said.count("and this"), "idle" if idle else "busy"


_PI = {
    "pi-auto-01": _pi_overflow,
    "pi-auto-04": _pi_stale_usage,
    "pi-auto-05": _pi_silent,
    "pi-auto-06": _pi_length,
    "pi-auto-08": _pi_mid_run,
    "pi-auto-09": _pi_queued,
    "pi-auto-10": _pi_race,
}

_ADAPTERS = {
    "overflow-loop": _overflow_loop,
    "loop-guard-2026.9": _loop_guard,
    "opencode.retry_delay": _retry_delay,
    "opencode.retryable": _retryable,
    "pi.auto_compaction": lambda case: _PI[case["id"]](case),
}


def _agrees(found, wanted):
    """Return whether all that a case says is so."""
    if not isinstance(wanted, dict):
        return found == wanted
    return all(key in found and found[key] == value for key, value in wanted.items())


if _cases():

    @pytest.mark.parametrize("case", _cases(), ids=lambda case: case["id"])
    def test_case(case):
        """A case comes out as advised or expected; one we deviate from on purpose does not."""
        found, wanted = _ADAPTERS[case["area"]](case), case.get("recommended", case["expect"])
        assert _agrees(found, wanted) is (case["id"] not in DEVIATIONS), (found, wanted)

    def test_deviations_are_cases():
        """Every deviation names a case that is there."""
        assert DEVIATIONS.keys() <= {case["id"] for case in _cases()}
