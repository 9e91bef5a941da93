"""Worked cases about recovery, retries and loops; run where the corpus is present.

A case is run by an engine, or planned, under the preset that it is about.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from engine_runs import EngineRun, build_turns
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
    "ovf-02": "a second compaction finds nothing to compact, since the tail stays: the run ends after fewer requests",
    "ovf-06": "when a summary fails an extract replaces it, and the request is sent",
    "ovf-07": "nothing compacts outside the run: a request refused after a compaction is compacted once more",
    "oc-retry-03": "Holdfast's own wait has one cap, with or without headers",
    "pi-auto-06": "an answer cut off by its length is kept in the log, so that the model can continue",
}
"""Cases in which Holdfast deviates on purpose, and why; each of them must differ."""

OPENCLAW = Policy.preset("openclaw")
PI = Policy.preset("pi")
TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000, setup=RequestSetup("f", 100, is_exact=True))


def _load_cases():
    if not (_CASES / "areas.json").exists():
        return []
    cases = [case for name in _FILES for case in json.loads((_CASES / name).read_text())]
    return [case for case in cases if case["area"] in _AREAS]


# -- provider replies --------------------------------------------------------------------------------------------------


_TOO_LONG_TEXT = "prompt is too long: 210000 tokens > 200000 maximum"
_TPM_TEXT = "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9000"
_STREAMED_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": _TOO_LONG_TEXT}}
_REPLIES = {
    "ok": "ok",
    "overflow": RefusalReply(400, "invalid_request_error", _TOO_LONG_TEXT),
    "overflow_but_runtime_already_compacted_in_this_attempt": RefusalReply(
        400, "invalid_request_error", _TOO_LONG_TEXT
    ),
    "assistant_message_with_error_stop_and_overflow_text": ScriptedReply(
        (b"event: error\ndata: " + json.dumps(_STREAMED_ERROR).encode() + b"\n\n",),
        headers={"content-type": "text/event-stream"},
    ),
    "compaction_failure_error": "ok",
    "prompt_error_non_overflow_with_stale_assistant_overflow_in_history": RefusalReply(
        400, "invalid_request_error", "roles must alternate"
    ),
    "retryable": RefusalReply(529, "overloaded_error", "Overloaded"),
    "413 TPM Limit 6000 Requested 9000 (one request larger than the whole limit)": RefusalReply(
        413, "rate_limit_exceeded", _TPM_TEXT
    ),
}
"""The provider's reply for each kind of attempt in a case."""


# -- engine runs -------------------------------------------------------------------------------------------------------


def _run_overflow_loop_case(case):
    """Return the outcome of a run over a history with as much to compact and to truncate as the case says."""
    params = case["params"]
    policy = OPENCLAW.with_settings(**(OPENCLAW_2026_9 if params.get("version") == "2026.9" else {}))
    if params.get("oversized"):
        policy = policy.with_settings(preset={"loop_share": 0.0})  # the loop guard would truncate it before any refusal
    attempts = [_REPLIES[attempt] for attempt in params["attempts"]]
    summary_fails = params["attempts"] == ["compaction_failure_error"]
    run = EngineRun(
        _build_history(params, summary_fails=summary_fails),
        [*attempts, *attempts[-1:] * 40],
        policy,
        summaries=[_REPLIES["retryable"]] * 9 if summary_fails else (),
        window=50_000 if summary_fails else 200_000,
    )
    assert not summary_fails or run.list_events(CompactionEnded), "the summary writer was called"
    counts = {
        "model_calls": len(run.upstream.sent),
        "compactions": sum(event.overflow_step == "compact" for event in run.list_events(ShrinkStarted)),
        "truncations": sum(event.rule == "truncate" for event in run.list_events(EditsDecided)),
    }
    return counts | _describe_outcome(run.error, counts)


def _build_history(params, *, summary_fails):
    """Return a conversation that can be compacted or not, with or without an oversized result."""
    can_compact = "compacted" in params.get("compact", ["compacted"]) or summary_fails
    messages = build_turns(20 if summary_fails else 8, 1_200) if can_compact else []
    messages = (
        [*messages, Message.from_text("assistant", _TOO_LONG_TEXT)] if "stale" in params["attempts"][0] else messages
    )
    if not params.get("oversized"):
        return [*messages, Message.from_text("user", "And now?")]
    call = ToolCall("big", "read", "{}")
    result = ToolResult("big", "read", (Text("a line of the log\n" * 17_000),))
    return [Message.from_text("user", "Read it."), Message("assistant", (call,)), Message("tool", (result,))]


def _describe_outcome(error, counts):
    """Return the outcome of a run in the terms of the cases."""
    if error is None:
        return {"outcome": "ok"}
    if isinstance(error, ContextOverflow):
        return {"outcome": "error", "kind": "context_overflow"}
    if "retry.max_retries" in str(error):
        return {"outcome": "error", "kind": "retry_limit", "max_model_calls_with_one_credential": counts["model_calls"]}
    return {"outcome": "original_error_rethrown"}


def _run_loop_guard_case(case):
    """Let the agent run one command for each call of the case; return whether it was stopped or warned."""
    calls = case["params"]["after_compaction_calls"]
    assert len({(tool, arguments) for tool, arguments, _ in calls}) == 1, "one command is repeated"
    with TemporaryDirectory() as folder:
        Path(folder, "results").write_text("".join(f"{result}\n" for _, _, result in calls))
        outcome, results = anyio.run(_run_agent_loop, Path(folder), len(calls))
    assert [text[:2] for text in results] == [result for _, _, result in calls]
    return {"abort": outcome.stop != "done" or any("of the same" in text for text in results)}


async def _run_agent_loop(folder, times):
    """Return the outcome of an agent that prints the next line of a file ``times`` times, and its tool results."""
    command = {"command": "head -n 1 results; sed -i 1d results"}
    provider = Provider(script=[*[Answered("", (("bash", command),))] * times, Answered("Done.")])
    store, options = MemoryStore(), {"model": "claude-sonnet-4-5", "environment": load_agent_environment(folder)}
    async with Engine.open(store, upstream=ProviderUpstream(provider), api="anthropic", **options) as engine:
        session = await engine.session("work")
        workspace = make_session_workspace(session, folder, allow=allow_command)
        outcome = await run_agent(session, "Go.", workspace)
    messages = [
        entry.body.sized_message.message for entry in store.read_path("work") if isinstance(entry.body, MessageEntry)
    ]
    return outcome, [get_result_text(result) for message in messages for result in message.results]


OPENCODE = Policy.preset("opencode")


def _run_retry_delay_case(case):
    """Return the milliseconds that an engine waits before the retry; without headers no response arrived."""
    attempt, headers = case["input"]["attempt"], case["input"]["headers"]
    failure = (
        ScriptedReply((b"busy",), 503, headers) if headers is not None else UpstreamError("no answer came", "network")
    )
    run = EngineRun([Message.from_text("user", "go")], [failure] * attempt + ["ok"], OPENCODE)
    return run.list_events(RetryScheduled)[-1].seconds * 1_000


def _run_retryable_case(case):
    """Return whether an engine retries a request that was answered with this status."""
    run = EngineRun(
        [Message.from_text("user", "go")], [ScriptedReply((b"no",), case["input"]["status"]), "ok"], OPENCODE
    )
    return run.error is None and len(run.upstream.sent) == 2


# -- pi's automatic compaction -----------------------------------------------------------------------------------------


def _append_bodies(state, *bodies):
    for body in bodies:
        state = apply_entry(state, Entry("", None, body))
    return state


def _run_pi_overflow_case(case):
    """Return the outcome of an oversized request: the failure is an entry, and the turn continues compacted."""
    text = case["input"]["last_assistant"]["errorMessage"]
    refusal = RefusalReply(400, "invalid_request_error", text)
    run = EngineRun(
        [*build_turns(), Message.from_text("user", "go")], [refusal, "ok"], PI.with_settings(preset={"tail_tokens": 1})
    )
    return {
        "reason": "overflow"
        if [event.overflow_step for event in run.list_events(ShrinkStarted)] == ["compact"]
        else None,
        "remove_error_message_from_live_context": text not in run.request,
        "session_keeps_it": any(text in failure.reason for failure in run.list_logged(FailureEntry)),
        "will_retry": len(run.upstream.sent) == 2,
        "then": "continue the same turn" if run.error is None and run.request.endswith("go") else None,
    }


def _run_pi_stale_usage_case(_):
    """Return whether usage from before a compaction still triggers one after it."""
    messages = [Message.from_text(role, f"{role} {at} " * 4_000) for at in range(3) for role in ("user", "assistant")]
    state_with_usage = plan(messages[:-1], TARGET, PI).state.with_reported_usage(190_000)
    messages += [Message.from_text("user", "on")]
    assert plan(messages, TARGET, PI, state=state_with_usage).compaction is not None, (
        "that usage alone makes it compact"
    )
    compacted_state = _append_bodies(
        state_with_usage, *[MessageEntry(build_sized_message(message)) for message in messages[-2:]]
    )
    compacted_state = _append_bodies(compacted_state, CompactionEntry(4, Message.from_text("user", "what was"), 5))
    return {"compact": plan(messages, TARGET, PI, state=compacted_state).compaction is not None}


def _run_pi_silent_overflow_case(case):
    """Return whether usage over the window is retried; the next request is compacted instead."""
    case_input = case["input"]
    usage = {"input_tokens": case_input["usage"]["input"], "cache_read_input_tokens": case_input["usage"]["cacheRead"]}
    messages = [
        *build_turns(filler_count=4_000),
        Message.from_text("user", "go"),
    ]  # about as much text as the reported usage
    run = EngineRun(messages, [_build_answer(case_input["stopReason"], usage)], PI)
    assert run.error is None
    state = run.store.open_state("case")
    messages = [*[sized.message for sized in state.history.sized_messages], Message.from_text("user", "on")]
    target = get_target("anthropic", "claude-sonnet-4-5", window=case_input["window"])
    compaction = plan(messages, target, PI, state=state).compaction
    return {"reason": "overflow" if compaction is not None else None, "will_retry": len(run.upstream.sent) > 1}


def _run_pi_length_case(case):
    case_input = case["input"]
    answer = _build_answer("max_tokens", {"input_tokens": 900, "output_tokens": case_input["output"]})
    run = EngineRun([*build_turns(), Message.from_text("user", "go")], [answer], PI)
    return {"reason": "overflow" if run.list_events(ShrinkStarted) or run.list_events(CompactionEnded) else None}


def _build_answer(stop, usage):
    """Return a streamed answer of Anthropic's API with this stop reason and usage."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    delta = {"stop_reason": {"stop": "end_turn"}.get(stop, stop), "stop_sequence": None}
    events = [
        {"type": "message_start", "message": message | {"usage": {"output_tokens": 1} | usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage.get("output_tokens", 1)}},
        {"type": "message_stop"},
    ]
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    return ScriptedReply(tuple(lines), headers={"content-type": "text/event-stream"})


def _build_long_turn():
    """Return one turn whose results exceed pi's trigger, with every call answered."""
    messages = [Message.from_text("user", "go")]
    for number in range(32):
        call = ToolCall(f"c{number}", "read", f'{{"path":"{number}"}}')
        text = "".join(f"line {line} of {number}\n" for line in range(4_000))
        messages += [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (Text(text),)),))]
    return messages


def _run_pi_mid_run_case(_):
    messages = _build_long_turn()
    new_plan = plan(messages, TARGET, PI)
    return {
        "compact_before_next_request": new_plan.compaction is not None,
        "same_run": [sized.message for sized in build_projection(new_plan.state)][-1].results != (),
    }


def _run_pi_queued_message_case(_):
    """Return whether a message that arrives during a compaction follows it in the next request."""
    first_plan = plan(_build_long_turn(), TARGET, PI)
    assert first_plan.compaction is not None
    messages = [*_build_long_turn(), Message.from_text("user", "and this")]
    sent = apply(messages, plan(messages, TARGET, PI, state=first_plan.state))
    return {"continue_called": [message.text for message in sent].count("and this") == 1}


def _run_pi_race_case(case):
    """Return the outcome of two compactions at once: the second waits for the turn, and the turn gets its answer."""
    outcomes = on_fake_clock(_compact_twice_at_once)
    return {"must_not": case["expect"]["must_not"] if outcomes == ("ok", 1, "idle") else outcomes}


async def _compact_twice_at_once():
    """Return the outcome of a turn that compacts first and of a manual compaction in the middle of it."""
    upstream = ProviderUpstream(Provider(), latency=5)
    writer = SummaryWriter(ProviderUpstream(Provider(), latency=20), TARGET)
    small_target = replace(TARGET, limits=replace(TARGET.limits, window=30_000))
    async with Engine.open(MemoryStore(), upstream=upstream, target=small_target, writers=[writer]) as engine:
        session = await engine.session("race")
        await session.append(*_build_long_turn()[:-1])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.ask, "and this")
            await anyio.sleep(10)
            assert session.compaction_tracker.status.in_flight, "the first compaction is in flight"
            tasks.start_soon(session.compact)
        texts = [message.text for message in session.journal.state.history.messages.slice(len(_build_long_turn()) - 1)]
        is_idle = engine.resources.lanes.is_idle and not session.compaction_tracker.status.is_busy
        return texts[-1].split()[0], texts.count("and this"), "idle" if is_idle else "busy"


_PI_ADAPTERS = {
    "pi-auto-01": _run_pi_overflow_case,
    "pi-auto-04": _run_pi_stale_usage_case,
    "pi-auto-05": _run_pi_silent_overflow_case,
    "pi-auto-06": _run_pi_length_case,
    "pi-auto-08": _run_pi_mid_run_case,
    "pi-auto-09": _run_pi_queued_message_case,
    "pi-auto-10": _run_pi_race_case,
}

_ADAPTERS = {
    "overflow-loop": _run_overflow_loop_case,
    "loop-guard-2026.9": _run_loop_guard_case,
    "opencode.retry_delay": _run_retry_delay_case,
    "opencode.retryable": _run_retryable_case,
    "pi.auto_compaction": lambda case: _PI_ADAPTERS[case["id"]](case),
}


def _matches(found, expected):
    """Return whether every expected value was found."""
    if not isinstance(expected, dict):
        return found == expected
    return all(key in found and found[key] == value for key, value in expected.items())


if _load_cases():

    @pytest.mark.parametrize("case", _load_cases(), ids=lambda case: case["id"])
    def test_recovery_case_matches_or_deviates_on_purpose(case):
        """Each case gives the recommended or expected result, and each deviation a different one."""
        found, expected = _ADAPTERS[case["area"]](case), case.get("recommended", case["expect"])
        assert _matches(found, expected) is (case["id"] not in DEVIATIONS), (found, expected)

    def test_deviations_name_existing_cases():
        """Each deviation names an existing case."""
        assert DEVIATIONS.keys() <= {case["id"] for case in _load_cases()}
