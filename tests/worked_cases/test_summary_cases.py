"""Worked cases about summaries: what is summarized, requested and accepted; run where the corpus is present.

An adapter turns a case into library calls and their results into the terms of the case; it knows no answer. It has the
name of its area with underscores for other characters.
"""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from engine_runs import TOO_LARGE, EngineRun, build_turns

from holdfast import PlanInputs, Policy, plan
from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import CompactionContext, SummaryWriter, write_summary
from holdfast.engine.hooks import Hooks
from holdfast.errors import CompactionFailed, ConfigError, ContextOverflow, UpstreamError
from holdfast.events import CompactionEnded
from holdfast.formats import build_state_at_leaf, read_recording
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.budget import compute_budget
from holdfast.planning.presets.common.overflow_replay import CONTINUE_INSTRUCTION
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, Entry, MessageEntry
from holdfast.state.plan import SummaryRequest
from holdfast.testing.clock import FakeClock
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.calls import ScriptedAnswer as Answered
from holdfast.testing.upstream import ScriptedUpstream

_FILES = Path(__file__).parents[3] / "shared" / "cases"
AREAS = {
    "summary", "history-share", "quality", "recent-turns", "pi.summary", "pi.file_ops", "opencode.process_compaction",
}  # fmt: skip
AREAS_LEFT_OUT = {
    "chunking": "a chunk is sized by the window of the summarizing model, not by a share of the agent's window",
    "tool-failures": "an extract lists the newest errors under Blocked; older failures can be recalled",
}
"""Areas about features of the other tool only, and why Holdfast does not need them."""

DEVIATIONS = {
    "saf-04": "an impossible setting is rejected by name, not replaced by another number",
    "saf-05": "identifiers stay as written, so that the summary can be checked against them exactly",
    "pi-file-02": "files are listed from all calls in the log each time: the details of a summary are not needed",
    "sum-02": "an oversized message is shortened, never left out; while its chunk fails no summary is written",
}
"""Cases that must differ from what is written, and why."""

LOOSE = Policy().with_settings(summarizer={"min_tokens": 0, "max_identifiers": 0}).settings
SUMMARY = "\n".join(f"## {name}\n(none)" for name in SUMMARY_HEADINGS).replace("(none)", "- sort the harbour files", 1)


# -- cases as messages -------------------------------------------------------------------------------------------------


def expand(value):
    """Return ``value`` with its ``$repeat`` expanded."""
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"][0] * value["$repeat"][1]
        return {key: expand(inner) for key, inner in value.items()}
    return [expand(inner) for inner in value] if isinstance(value, list) else value


def build_message(source):
    content = source["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = tuple(
        Text(block["text"])
        if block["type"] == "text"
        else ToolCall(block["id"], block["name"], json.dumps(block["arguments"]))
        for block in blocks
    )
    if source["role"] == "tool":
        return Message("tool", (ToolResult(source["call_id"], source["name"], parts, source["is_error"]),))
    return Message(source["role"], parts)


def messages(case):
    return [build_message(source) for source in case["input"]]


def list_ids(case, chosen):
    """Return the ids of the chosen messages, using each message of the case once."""
    remaining = [(item["id"], build_message(item)) for item in case["input"]]
    ids = []
    for item in chosen:
        index = next(position for position, (_, candidate) in enumerate(remaining) if candidate == item)
        ids.append(remaining.pop(index)[0])
    return ids


# -- a writer ----------------------------------------------------------------------------------------------------------


class StubUpstream:
    """A summary writer's upstream that numbers its summaries, fails on request, and records the prompts."""

    def __init__(self, should_fail):
        self.should_fail, self.prompts = should_fail, []

    @asynccontextmanager
    async def send(self, sent):
        self.prompts.append(parse_request(sent.body).messages[-1].message.text)
        if self.should_fail(self.prompts[-1]):
            raise UpstreamError("the tide is out", "server")
        summary = SUMMARY.replace("(none)", f"- S{len(self.prompts)} barnacle kelp", 1)
        async with ScriptedUpstream([summary]).send(sent) as reply:
            yield reply


def write_head_summary(upstream, head, *, window=200_000, **request_fields):
    """Return the text of the summary of ``head``, or the error if there is none.

    The writer is called directly: an engine replaces a failed summary by an extract and does not let the caller choose
    what is summarized, as the cases do.
    """
    writer = SummaryWriter(upstream, get_target("anthropic", "claude-opus-5-5", window=window))
    settings = (
        Policy(settings=LOOSE).with_settings(summarizer={"retry_base_seconds": 0.0, "retry_cap_seconds": 0.0}).settings
    )

    async def write():
        request = SummaryRequest(0, len(head), 4_000, **request_fields)
        return await write_summary(
            [build_sized_message(message) for message in head], request, [writer], CompactionContext(settings)
        )

    try:
        return anyio.run(write).text
    except CompactionFailed as error:
        return error


# -- OpenClaw ----------------------------------------------------------------------------------------------------------


def summary(case):
    failure = case["params"]["fail_when"]
    contents = {source["id"]: source["content"] for source in case["input"]}
    stub = StubUpstream(lambda text: bool(failure.get("all")) or contents[failure["contains"]][:500] in text)
    result = write_head_summary(stub, messages(case), window=case["params"]["window"])
    if isinstance(result, CompactionFailed) and result.outcome == "provider_error":
        return {"result": "no summary is written, history is kept, failure is reported"}
    return {"result": result, "calls": stub.prompts}


def history_share(case):
    """Return what a policy without summaries drops: whole groups, oldest first, until the rest fits its share."""
    params, history = case["params"], messages(case)
    share = int(params["window"] * params["share"])
    policy = Policy.preset("sliding").with_settings(
        reserve={"min": 0, "max": share, "floor": 0, "max_share": params["share"]},
        window={"estimate_margin_share": 0.0},
    )
    target = get_target("somebody", "unknown", window=params["window"])
    new_plan = plan(history, target, policy)
    assert compute_budget(target, policy.settings).usable == share
    kept = history[new_plan.compaction.first_kept :] if new_plan.compaction else history
    dropped = history[: len(history) - len(kept)]
    return {
        "kept": list_ids(case, kept),
        "dropped": list_ids(case, dropped),
        "chunks": int(new_plan.compaction is not None),
        "count": len(dropped),
        "budget": share,
    }


def recent_turns(case):
    """Return what a tail of ``turns`` turns keeps and what is summarized, or the value that each setting gets."""
    if "values" in case["params"]:
        return [set_tail_turns(value) for value in case["params"]["values"]]
    policy = Policy.preset("opencode").with_settings(preset={"tail_turns": case["params"]["turns"]})
    keep = plan(
        messages(case), get_target("anthropic", "claude-opus-5-5"), policy, inputs=PlanInputs(force_compaction=True)
    ).compaction.first_kept
    ids = [source["id"] for source in case["input"]]
    return {"summarise": ids[:keep], "keep": ids[keep:]}


def set_tail_turns(value):
    try:
        return Policy.preset("opencode").with_settings(preset={"tail_turns": value}).rules.tail_turns
    except ConfigError as error:
        return str(error)


def quality(case):
    """Return an engine's problems with a summary in the terms of the case, or the identifiers it requires of a text.

    The headings of the case are translated to Holdfast's, since each tool has its own.
    """
    params = case["params"]
    if "text" in params:
        problems = judge_summary(
            SUMMARY, params["text"], Policy.preset("openclaw").with_settings(summarizer={"min_tokens": 0})
        )
        return problems["these are not in it, letter by letter"].split(", ")
    strict = params.get("policy", "strict") == "strict"
    policy = Policy.preset("openclaw").with_settings(
        summarizer={"min_tokens": 0, "max_identifiers": 12 if strict else 0}
    )
    found_problems = judge_summary(
        use_holdfast_headings(params["summary"]), " and ".join(params["identifiers"]), policy
    )
    reasons = [
        OPENCLAW_REASONS[problem].format(OPENCLAW_NAMES.get(detail, detail))
        for problem, detail in found_problems.items()
    ]
    return {"ok": not found_problems, "reasons": reasons}


def judge_summary(summary, seen, policy):
    """Return why an engine rejects ``summary`` of a conversation that mentions ``seen``: problems with details."""
    conversation = [Message.from_text("user", "Migrate the billing database tonight."), *build_turns(1)[1:]]
    conversation += [Message.from_text("assistant", f"I saw {seen}"), Message.from_text("user", "And now?")]
    policy = policy.with_settings(preset={"tail_tokens": 1})
    run = EngineRun(conversation, ["ok"], policy, summaries=[summary] * 2, compacts_first=True)
    event = run.list_events(CompactionEnded)[0]
    if event.outcome == "compacted":
        assert event.author == "model"
        return {}
    assert event.outcome == "summary_rejected", event
    *reasons, _advice = event.why.partition("summary: ")[2].split("; ")
    return {problem: detail for problem, _, detail in (reason.partition(": ") for reason in reasons)}


def use_holdfast_headings(text):
    """Return an OpenClaw summary under Holdfast's headings; those without a counterpart are empty."""
    for openclaw_heading, heading in zip(OPENCLAW_HEADINGS, SUMMARY_HEADINGS, strict=False):
        text = text.replace(f"## {openclaw_heading}\n", f"## {heading}\n")
    other_headings = SUMMARY_HEADINGS[len(OPENCLAW_HEADINGS) :]
    return text + "".join(f"\n## {name}\n(none)" for name in other_headings)


OPENCLAW_HEADINGS = ("Decisions", "Open TODOs", "Constraints/Rules", "Pending user asks", "Exact identifiers")
OPENCLAW_REASONS = {
    "these headings are not there or not in their order": "missing_section:## {}",
    "these are not in it, letter by letter": "missing_identifiers:{}",
    "it does not say what the user asked for last": "latest_user_ask_not_reflected",
}
OPENCLAW_NAMES = dict(zip(SUMMARY_HEADINGS, OPENCLAW_HEADINGS, strict=False))


# -- pi ----------------------------------------------------------------------------------------------------------------


def build_pi_line(source, number, before):
    """Return an entry of a case as a line of a pi session."""
    line = {"id": source.get("id", f"e{number}"), "parentId": before, "timestamp": "2026-01-01T00:00:00Z"}
    if source["role"] == "compaction":
        fields = {"summary": source["summary"], "firstKeptEntryId": source["firstKept"], "details": source["details"]}
        return line | {"type": "compaction", "tokensBefore": 1, "fromHook": source.get("fromHook", False)} | fields
    calls = [
        {"type": "toolCall", "id": call["id"], "name": call["name"], "arguments": call["args"]}
        for call in source.get("calls", [])
    ]
    content = [{"type": "text", "text": "x" * source.get("chars", 1)}, *calls]
    answers = {"toolCallId": source["call"], "toolName": "t"} if "call" in source else {}
    return line | {"type": "message", "message": {"role": source["role"], "content": content} | answers}


def pi_file_ops(case):
    """Return the files that a compaction of the session lists, in pi's terms; each call has its result."""
    entries = [{"role": "user", "chars": 40}]
    for source in [*case["input"], {"role": "user", "chars": 40}]:
        entries += [source, *({"role": "toolResult", "call": call["id"]} for call in source.get("calls", []))]
    lines = [{"type": "session", "version": 3, "id": "S", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/x"}]
    for number, source in enumerate(entries):
        lines.append(build_pi_line(source, number, lines[-1]["id"] if number else None))
    recording = read_recording("".join(json.dumps(line) + "\n" for line in lines).encode(), "x.jsonl")
    policy = Policy.preset("pi").with_settings(preset={"tail_tokens": case["params"].get("keepRecentTokens", 1)})
    target = get_target("anthropic", "claude-opus-5-5")
    state = build_state_at_leaf(recording)
    messages = [sized.message for sized in state.history.sized_messages]
    text = plan(messages, target, policy, state=state, inputs=PlanInputs(force_compaction=True)).compaction.summary.text
    actions_by_path = dict(re.findall(r"^- (\S+\.py): (.*)$", text.partition("## Relevant Files")[2], re.MULTILINE))
    changed_paths = sorted(path for path, actions in actions_by_path.items() if "edit" in actions)
    read_paths = sorted(actions_by_path.keys() - set(changed_paths))
    blocks = [("read-files", read_paths), ("modified-files", changed_paths)]
    tail = "".join(f"\n\n<{name}>\n" + "\n".join(paths) + f"\n</{name}>" for name, paths in blocks if paths)
    return {"readFiles": read_paths, "modifiedFiles": changed_paths, "tail": tail}


def pi_summary(case):
    """Return the outcome of a summary that is cut off: it is rejected, and an extract replaces it."""
    cut_off = Answered(SUMMARY, stop=case["input"]["summary_stop_reason"])
    policy = Policy.preset("pi").with_settings(preset={"tail_tokens": 1}, summarizer={"min_tokens": 0})
    conversation = [*build_turns(), Message.from_text("user", "And now?")]
    run = EngineRun(conversation, ["ok"], policy, summaries=[cut_off] * 9, compacts_first=True)
    events = run.list_events(CompactionEnded)
    assert "sort the harbour files" not in run.request
    return {
        "throws": events[0].outcome == "summary_rejected" and all(event.author != "model" for event in events[1:]),
        "session_unchanged": [body.sized_message.message for body in run.list_logged(MessageEntry)][: len(conversation)]
        == conversation,
    }


# -- opencode ----------------------------------------------------------------------------------------------------------


def opencode_process_compaction(case):
    case_input = case["input"]
    if "summary_call_itself" in case_input:
        return run_overflow_case(case_input)
    if "history" in case_input:
        return run_update_case(case_input)
    if "summary model emits a tool call" in case_input:
        return run_stray_call_case()
    if any(key.startswith("abort") for key in case_input):
        return run_abort_case(case_input)
    return run_continue_case(case_input)


OPENCODE = Policy.preset("opencode").with_settings(summarizer={"min_tokens": 0, "max_identifiers": 0})


def run_overflow_case(case_input):
    """Return the outcome of a run in which the request and every summary request are refused as too large."""
    question = Message.from_text("user", "And now?")
    conversation = [*build_turns(), question] if case_input["replay"] else build_unread_turn()
    run = EngineRun(conversation, [TOO_LARGE], OPENCODE, summaries=[TOO_LARGE] * 2)
    assert isinstance(run.error, ContextOverflow)
    return {
        "returns": "stop" if len(run.upstream.sent) == 1 else "continue",
        "message_contains": next((text for text in STOPPED if text in str(run.error)), ""),
    }


STOPPED = ("Conversation history too large to compact", "Session too large to compact")


def build_unread_turn():
    """Return one long turn: a request, and calls with results of which the last is unread."""
    conversation = [Message.from_text("user", "Sort the harbour files.")]
    for number in range(4):
        call = ToolCall(f"c{number}", "read", "{}")
        lines = Text("barnacle kelp\n" * 900)
        conversation += [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (lines,)),))]
    return conversation


def run_continue_case(case_input):
    """Return what the request after a compaction contains: a manual one, or one after an overflow in a long turn."""
    hook = next((value for key, value in case_input.items() if "autocontinue" in key), "")
    hooks = Hooks(auto_continue=lambda: hook != "enabled=false")
    conversation = (
        [*build_turns(), Message.from_text("user", "And now?")] if case_input.get("replay") else build_unread_turn()
    )
    replies = [TOO_LARGE, "ok"] if case_input["auto"] else ["ok"]
    run = EngineRun(conversation, replies, OPENCODE, compacts_first=not case_input["auto"], hooks=hooks)
    endings = run.list_events(CompactionEnded)
    assert [event.outcome for event in endings] == ["compacted"]
    return {
        "continue_message": CONTINUE_INSTRUCTION in run.request,
        "replay_message": run.request.endswith("And now?"),
        "returns": "stop" if run.error else "continue",
    }


def run_update_case(case_input):
    """Return what the prompt of a second compaction contains, as planned and rendered by Holdfast."""
    texts = {name: f"{name} " + "barnacle kelp " * 2_000 for name in ("c1", "u2", "a2")}
    old = re.search(r'"(\w+)"', case_input["history"][1])[1]
    before = Message("user", (Text("the summary before"), Text(old)))
    entries = [
        MessageEntry(build_sized_message(Message.from_text("user", texts["c1"]))),
        CompactionEntry(1, before, 10, author="model"),
    ]
    entries += [
        MessageEntry(build_sized_message(Message.from_text(role, texts[name])))
        for role, name in (("user", "u2"), ("assistant", "a2"))
    ]
    entries.append(MessageEntry(build_sized_message(Message.from_text("user", "go on"))))
    state = ConversationState.from_entries(Entry("", None, body) for body in entries)
    target = get_target("anthropic", "claude-opus-5-5", window=40_000)
    messages = [sized.message for sized in state.history.sized_messages]
    request = plan(
        messages, target, Policy(), state=state, inputs=PlanInputs(force_compaction=True, can_summarize=True)
    ).summary_request
    stub = StubUpstream(lambda _: False)
    write_head_summary(
        stub, state.history.messages.slice(request.start, request.stop), previous_summary=request.previous_summary
    )
    prompt = stub.prompts[0]
    return {
        "prompt_contains_once": old if prompt.count(old) == 1 else "",
        "prompt_has": "<previous-summary>" if "<previous-summary>" in prompt else "",
        "hidden_from_head_and_sizing": [
            name for name in ("c1", "s1") if texts.get(name, old) not in prompt.split("<conversation>")[1]
        ],
    }


def run_stray_call_case():
    """Return how many calls a request has after a compaction whose writer called a tool first."""
    tool_call = Answered("", (("read", {"path": "a"}),))
    policy = OPENCODE.with_settings(preset={"tail_turns": 0})
    summary = SUMMARY.replace("(none)", "- barnacle kelp", 1)
    run = EngineRun(
        [*build_turns(), Message.from_text("user", "And now?")],
        ["ok"],
        policy,
        summaries=[tool_call, summary],
        compacts_first=True,
    )
    assert [event.author for event in run.list_events(CompactionEnded)] == ["model"], run.list_events(CompactionEnded)
    return {"tool_parts_in_summary": run.upstream.sent[-1].body.count(b"tool_use")}


def run_abort_case(case_input):
    """Return the outcome of a compaction aborted in the pause before a retry, or before it begins."""
    refusal = RefusalReply(503, "overloaded_error", "busy", retry_after=10.0)
    upstream, clock = ScriptedUpstream([refusal] * 3), FakeClock()
    is_started = any("back-off" in key for key in case_input)

    async def write():
        with anyio.move_on_after(0.05 if is_started else 0.0) as scope:
            writer = SummaryWriter(upstream, get_target("anthropic", "claude-opus-5-5"))
            return await write_summary(
                [build_sized_message(Message.from_text("user", "sort"))], SummaryRequest(0, 1, 4_000), [writer]
            )
        return None if scope.cancelled_caught else scope

    result = clock.run(write)
    outcome = {"returns": "stop" if result is None else "continue", "within_ms": max(clock() * 1_000, 250)}
    return outcome if is_started else {"summary_messages_in_store": int(result is not None)}


# -- the tests ---------------------------------------------------------------------------------------------------------


def load_cases():
    if not _FILES.exists():
        return []
    found = [json.loads((_FILES / name).read_text()) for name in ("openclaw.json", "pi-opencode.json")]
    return [case for listed in found for case in listed if case["area"] in AREAS]


def matches(found, expected):
    """Return whether every expected value was found."""
    if not isinstance(expected, dict):
        return found == expected
    return all(found[key] == value for key, value in expected.items())


def run_adapter(case):
    return globals()[re.sub(r"\W", "_", case["area"])](case)


if load_cases():

    @pytest.mark.parametrize("case", expand(load_cases()), ids=lambda case: case["id"])
    def test_summary_case_matches_or_deviates_on_purpose(case):
        """Each case gives the recommended or expected result, and each deviation a different one."""
        expected = {**case["expect"], **case["recommended"]} if "recommended" in case else case["expect"]
        if case["id"] == "sum-03":
            expected = case["recommended"]
        found = run_adapter(case)
        assert matches(found, expected) is (case["id"] not in DEVIATIONS), (found, expected)

    def test_deviations_name_existing_cases():
        """Each deviation names an existing case, and each area left out exists in the corpus."""
        assert DEVIATIONS.keys() <= {case["id"] for case in load_cases()}
        assert AREAS_LEFT_OUT.keys() <= json.loads((_FILES / "areas.json").read_text()).keys() - AREAS
