"""The worked cases about summaries beside this checkout, where they are there: what is read, asked for and taken.

An adapter turns a case into calls of the library and what comes back into the words of the case; it knows no answer.
"""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from engine_runs import TOO_LARGE, EngineRun, talk

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
from holdfast.providers.requests.request_body import parse_request
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
NOT_OURS = {
    "chunking": "a part is as large as the window of the model that summarizes takes, no share of the agent's own",
    "tool-failures": "an extract tells the newest errors under Blocked; a list of all that failed is read back instead",
}
"""Areas about what only the other tool has, and why we need it not: nothing of ours could be run."""

DEVIATIONS = {
    "saf-04": "a setting that cannot be is refused by its name, not replaced by another number",
    "saf-05": "identifiers stay as they are written, so that the summary can be held to them letter by letter",
    "pi-file-02": "files are told from the calls in the log, all of them each time: no summary's details are needed",
    "sum-02": "a message that is too large is told shorter, never left out; while it fails nothing is written",
}
"""Cases that must not come out as written, and why."""

LOOSE = Policy().with_settings(summarizer={"min_tokens": 0, "max_identifiers": 0}).settings
SUMMARY = "\n".join(f"## {name}\n(none)" for name in SUMMARY_HEADINGS).replace("(none)", "- sort the harbour files", 1)


# -- cases as messages -------------------------------------------------------------------------------------------------


def long(value):
    """Return ``value`` with its ``$repeat`` spelled out."""
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"][0] * value["$repeat"][1]
        return {key: long(one) for key, one in value.items()}
    return [long(one) for one in value] if isinstance(value, list) else value


def message(said):
    content = said["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = tuple(
        Text(one["text"]) if one["type"] == "text" else ToolCall(one["id"], one["name"], json.dumps(one["arguments"]))
        for one in blocks
    )
    if said["role"] == "tool":
        return Message("tool", (ToolResult(said["call_id"], said["name"], parts, said["is_error"]),))
    return Message(said["role"], parts)


def messages(case):
    return [message(one) for one in case["input"]]


def names(case, chosen):
    """Return the ids of the messages that were chosen, each given one once."""
    left = [(one["id"], message(one)) for one in case["input"]]
    out = []
    for one in chosen:
        place = next(at for at, (_, given) in enumerate(left) if given == one)
        out.append(left.pop(place)[0])
    return out


# -- a writer ----------------------------------------------------------------------------------------------------------


class Stub:
    """A writer's provider that numbers its summaries and fails where it is told to; it remembers what it read."""

    def __init__(self, fails):
        self.fails, self.read = fails, []

    @asynccontextmanager
    async def send(self, sent):
        self.read.append(parse_request(sent.body).messages[-1].message.text)
        if self.fails(self.read[-1]):
            raise UpstreamError("the tide is out", "server")
        said = SUMMARY.replace("(none)", f"- S{len(self.read)} barnacle kelp", 1)
        async with ScriptedUpstream([said]).send(sent) as reply:
            yield reply


def written(upstream, head, *, window=200_000, **ask):
    """Return the text of the summary of ``head``, or the error where none came.

    The writer itself is asked here: whoever uses an engine sees an extract in place of a summary that did not come,
    and cannot say what is to be summarised, as the cases do.
    """
    writer = SummaryWriter(upstream, get_target("anthropic", "claude-opus-5-5", window=window))
    settings = (
        Policy(settings=LOOSE).with_settings(summarizer={"retry_base_seconds": 0.0, "retry_cap_seconds": 0.0}).settings
    )

    async def go():
        wanted = SummaryRequest(0, len(head), 4_000, **ask)
        return await write_summary(
            [build_sized_message(one) for one in head], wanted, [writer], CompactionContext(settings)
        )

    try:
        return anyio.run(go).text
    except CompactionFailed as failed:
        return failed


# -- OpenClaw ----------------------------------------------------------------------------------------------------------


def summary(case):
    when = case["params"]["fail_when"]
    big = {one["id"]: one["content"] for one in case["input"]}
    stub = Stub(lambda text: bool(when.get("all")) or big[when["contains"]][:500] in text)
    told = written(stub, messages(case), window=case["params"]["window"])
    if isinstance(told, CompactionFailed) and told.outcome == "provider_error":
        return {"result": "no summary is written, history is kept, failure is reported"}
    return {"result": told, "calls": stub.read}


def history_share(case):
    """Return what a policy without summaries drops: whole groups, oldest first, until the rest has its share."""
    asked, said = case["params"], messages(case)
    share = int(asked["window"] * asked["share"])
    policy = Policy.preset("sliding").with_settings(
        reserve={"min": 0, "max": share, "floor": 0, "max_share": asked["share"]},
        window={"estimate_margin_share": 0.0},
    )
    where = get_target("somebody", "unknown", window=asked["window"])
    made = plan(said, where, policy)
    assert compute_budget(where, policy.settings).usable == share
    kept = said[made.compaction.first_kept :] if made.compaction else said
    dropped = said[: len(said) - len(kept)]
    return {
        "kept": names(case, kept),
        "dropped": names(case, dropped),
        "chunks": int(made.compaction is not None),
        "count": len(dropped),
        "budget": share,
    }


def recent_turns(case):
    """Return what a tail of so many turns keeps, and what is summarised; a setting is what it is set to."""
    if "values" in case["params"]:
        return [tail_turns(value) for value in case["params"]["values"]]
    policy = Policy.preset("opencode").with_settings(preset={"tail_turns": case["params"]["turns"]})
    keep = plan(
        messages(case), get_target("anthropic", "claude-opus-5-5"), policy, inputs=PlanInputs(force_compaction=True)
    ).compaction.first_kept
    ids = [one["id"] for one in case["input"]]
    return {"summarise": ids[:keep], "keep": ids[keep:]}


def tail_turns(value):
    try:
        return Policy.preset("opencode").with_settings(preset={"tail_turns": value}).rules.tail_turns
    except ConfigError as error:
        return str(error)


def quality(case):
    """Return what an engine says against a summary, in the words of the case; of a text, what it wants kept of it.

    The headings are those of the case, told as ours: which ones there are is each tool's own.
    """
    asked = case["params"]
    if "text" in asked:
        why = judged(SUMMARY, asked["text"], Policy.preset("openclaw").with_settings(summarizer={"min_tokens": 0}))
        return why["these are not in it, letter by letter"].split(", ")
    strict = asked.get("policy", "strict") == "strict"
    policy = Policy.preset("openclaw").with_settings(
        summarizer={"min_tokens": 0, "max_identifiers": 12 if strict else 0}
    )
    told = judged(in_our_headings(asked["summary"]), " and ".join(asked["identifiers"]), policy)
    reasons = [OPENCLAW_REASONS[what].format(OURS.get(which, which)) for what, which in told.items()]
    return {"ok": not told, "reasons": reasons}


def judged(summary, seen, policy):
    """Return why an engine refuses ``summary`` of a conversation that speaks of ``seen``: what is wrong, and where."""
    said = [Message.from_text("user", "Migrate the billing database tonight."), *talk(1)[1:]]
    said += [Message.from_text("assistant", f"I saw {seen}"), Message.from_text("user", "And now?")]
    policy = policy.with_settings(preset={"tail_tokens": 1})
    made = EngineRun(said, ["ok"], policy, written=[summary] * 2, compacts=True)
    event = made.events(CompactionEnded)[0]
    if event.outcome == "compacted":
        assert event.author == "model"
        return {}
    assert event.outcome == "summary_rejected", event
    *reasons, _advice = event.why.partition("summary: ")[2].split("; ")
    return {what: which for what, _, which in (reason.partition(": ") for reason in reasons)}


def in_our_headings(text):
    """Return a summary of OpenClaw under our headings; those that it has no counterpart of have nothing to say."""
    for theirs, ours in zip(OPENCLAW_HEADINGS, SUMMARY_HEADINGS, strict=False):
        text = text.replace(f"## {theirs}\n", f"## {ours}\n")
    rest = SUMMARY_HEADINGS[len(OPENCLAW_HEADINGS) :]
    return text + "".join(f"\n## {name}\n(none)" for name in rest)


OPENCLAW_HEADINGS = ("Decisions", "Open TODOs", "Constraints/Rules", "Pending user asks", "Exact identifiers")
OPENCLAW_REASONS = {
    "these headings are not there or not in their order": "missing_section:## {}",
    "these are not in it, letter by letter": "missing_identifiers:{}",
    "it does not say what the user asked for last": "latest_user_ask_not_reflected",
}
OURS = dict(zip(SUMMARY_HEADINGS, OPENCLAW_HEADINGS, strict=False))


# -- pi ----------------------------------------------------------------------------------------------------------------


def pi_line(one, number, before):
    """Return an entry of a case as a line of a pi session."""
    line = {"id": one.get("id", f"e{number}"), "parentId": before, "timestamp": "2026-01-01T00:00:00Z"}
    if one["role"] == "compaction":
        told = {"summary": one["summary"], "firstKeptEntryId": one["firstKept"], "details": one["details"]}
        return line | {"type": "compaction", "tokensBefore": 1, "fromHook": one.get("fromHook", False)} | told
    calls = [
        {"type": "toolCall", "id": call["id"], "name": call["name"], "arguments": call["args"]}
        for call in one.get("calls", [])
    ]
    content = [{"type": "text", "text": "x" * one.get("chars", 1)}, *calls]
    answers = {"toolCallId": one["call"], "toolName": "t"} if "call" in one else {}
    return line | {"type": "message", "message": {"role": one["role"], "content": content} | answers}


def pi_file_ops(case):
    """Return the files that a compaction of the session tells of, in pi's words; each call has its result."""
    entries = [{"role": "user", "chars": 40}]
    for one in [*case["input"], {"role": "user", "chars": 40}]:
        entries += [one, *({"role": "toolResult", "call": call["id"]} for call in one.get("calls", []))]
    lines = [{"type": "session", "version": 3, "id": "S", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/x"}]
    for number, one in enumerate(entries):
        lines.append(pi_line(one, number, lines[-1]["id"] if number else None))
    recording = read_recording("".join(json.dumps(line) + "\n" for line in lines).encode(), "x.jsonl")
    policy = Policy.preset("pi").with_settings(preset={"tail_tokens": case["params"].get("keepRecentTokens", 1)})
    where = get_target("anthropic", "claude-opus-5-5")
    branch = build_state_at_leaf(recording)
    messages = [slot.message for slot in branch.history.sized_messages]
    text = plan(messages, where, policy, state=branch, inputs=PlanInputs(force_compaction=True)).compaction.summary.text
    found = dict(re.findall(r"^- (\S+\.py): (.*)$", text.partition("## Relevant Files")[2], re.MULTILINE))
    changed = sorted(path for path, done in found.items() if "edit" in done)
    seen = sorted(found.keys() - set(changed))
    blocks = [("read-files", seen), ("modified-files", changed)]
    tail = "".join(f"\n\n<{name}>\n" + "\n".join(paths) + f"\n</{name}>" for name, paths in blocks if paths)
    return {"readFiles": seen, "modifiedFiles": changed, "tail": tail}


def pi_summary(case):
    """Return what becomes of a summary that breaks off: it is refused, and an extract takes its place."""
    broken = Answered(SUMMARY, stop=case["input"]["summary_stop_reason"])
    policy = Policy.preset("pi").with_settings(preset={"tail_tokens": 1}, summarizer={"min_tokens": 0})
    said = [*talk(), Message.from_text("user", "And now?")]
    made = EngineRun(said, ["ok"], policy, written=[broken] * 9, compacts=True)
    events = made.events(CompactionEnded)
    assert "sort the harbour files" not in made.request
    return {
        "throws": events[0].outcome == "summary_rejected" and all(event.author != "model" for event in events[1:]),
        "session_unchanged": [body.sized_message.message for body in made.logged(MessageEntry)][: len(said)] == said,
    }


# -- opencode ----------------------------------------------------------------------------------------------------------


def opencode_process_compaction(case):
    given = case["input"]
    if "summary_call_itself" in given:
        return overflowing(given)
    if "history" in given:
        return anchored(given)
    if "summary model emits a tool call" in given:
        return stray_call()
    if any(key.startswith("abort") for key in given):
        return aborted(given)
    return continued(given)


OPENCODE = Policy.preset("opencode").with_settings(summarizer={"min_tokens": 0, "max_identifiers": 0})


def overflowing(given):
    """Return how a run ends whose request is refused, and the one for a summary too, however small it is made."""
    question = Message.from_text("user", "And now?")
    said = [*talk(), question] if given["replay"] else unread_turn()
    made = EngineRun(said, [TOO_LARGE], OPENCODE, written=[TOO_LARGE] * 2)
    assert isinstance(made.error, ContextOverflow)
    return {
        "returns": "stop" if len(made.upstream.sent) == 1 else "continue",
        "message_contains": next((text for text in STOPPED if text in str(made.error)), ""),
    }


STOPPED = ("Conversation history too large to compact", "Session too large to compact")


def unread_turn():
    """Return one long turn: a request, and calls with results of which the last was not read."""
    said = [Message.from_text("user", "Sort the harbour files.")]
    for number in range(4):
        call = ToolCall(f"c{number}", "read", "{}")
        lines = Text("barnacle kelp\n" * 900)
        said += [Message("assistant", (call,)), Message("tool", (ToolResult(call.id, "read", (lines,)),))]
    return said


def continued(given):
    """Return what stands in the request behind a compaction: one by hand, or after an overflow in a long turn."""
    hook = next((value for key, value in given.items() if "autocontinue" in key), "")
    hooks = Hooks(auto_continue=lambda: hook != "enabled=false")
    said = [*talk(), Message.from_text("user", "And now?")] if given.get("replay") else unread_turn()
    replies = [TOO_LARGE, "ok"] if given["auto"] else ["ok"]
    made = EngineRun(said, replies, OPENCODE, compacts=not given["auto"], hooks=hooks)
    compacted = made.events(CompactionEnded)
    assert [event.outcome for event in compacted] == ["compacted"]
    return {
        "continue_message": CONTINUE_INSTRUCTION in made.request,
        "replay_message": made.request.endswith("And now?"),
        "returns": "stop" if made.error else "continue",
    }


def anchored(given):
    """Return what is asked of the writer at a second compaction, as our planner and our prompt ask for it."""
    texts = {name: f"{name} " + "barnacle kelp " * 2_000 for name in ("c1", "u2", "a2")}
    old = re.search(r'"(\w+)"', given["history"][1])[1]
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
    branch = ConversationState.from_entries(Entry("", None, body) for body in entries)
    where = get_target("anthropic", "claude-opus-5-5", window=40_000)
    messages = [slot.message for slot in branch.history.sized_messages]
    ask = plan(
        messages, where, Policy(), state=branch, inputs=PlanInputs(force_compaction=True, can_summarize=True)
    ).summary_request
    stub = Stub(lambda _: False)
    written(stub, branch.history.messages.slice(ask.start, ask.stop), previous_summary=ask.previous_summary)
    prompt = stub.read[0]
    return {
        "prompt_contains_once": old if prompt.count(old) == 1 else "",
        "prompt_has": "<previous-summary>" if "<previous-summary>" in prompt else "",
        "hidden_from_head_and_sizing": [
            name for name in ("c1", "s1") if texts.get(name, old) not in prompt.split("<conversation>")[1]
        ],
    }


def stray_call():
    """Return how many calls a request shows behind a compaction whose writer called a tool before it wrote."""
    called = Answered("", (("read", {"path": "a"}),))
    policy = OPENCODE.with_settings(preset={"tail_turns": 0})
    summary = SUMMARY.replace("(none)", "- barnacle kelp", 1)
    made = EngineRun(
        [*talk(), Message.from_text("user", "And now?")], ["ok"], policy, written=[called, summary], compacts=True
    )
    assert [event.author for event in made.events(CompactionEnded)] == ["model"], made.events(CompactionEnded)
    return {"tool_parts_in_summary": made.upstream.sent[-1].body.count(b"tool_use")}


def aborted(given):
    """Return what is left of a compaction that is aborted: in the pause before a retry, or before it begins."""
    busy = RefusalReply(503, "overloaded_error", "busy", retry_after=10.0)
    upstream, clock = ScriptedUpstream([busy] * 3), FakeClock()
    begins = any("back-off" in key for key in given)

    async def go():
        with anyio.move_on_after(0.05 if begins else 0.0) as scope:
            writer = SummaryWriter(upstream, get_target("anthropic", "claude-opus-5-5"))
            return await write_summary(
                [build_sized_message(Message.from_text("user", "sort"))], SummaryRequest(0, 1, 4_000), [writer]
            )
        return None if scope.cancelled_caught else scope

    made = clock.run(go)
    told = {"returns": "stop" if made is None else "continue", "within_ms": max(clock() * 1_000, 250)}
    return told if begins else {"summary_messages_in_store": int(made is not None)}


# -- the tests ---------------------------------------------------------------------------------------------------------


def cases():
    if not _FILES.exists():
        return []
    found = [json.loads((_FILES / name).read_text()) for name in ("openclaw.json", "pi-opencode.json")]
    return [case for listed in found for case in listed if case["area"] in AREAS]


def agrees(found, wanted):
    """Return whether all that a case says is so."""
    if not isinstance(wanted, dict):
        return found == wanted
    return all(found[key] == value for key, value in wanted.items())


def answer(case):
    return globals()[re.sub(r"\W", "_", case["area"])](case)


if cases():

    @pytest.mark.parametrize("case", long(cases()), ids=lambda case: case["id"])
    def test_case(case):
        """A case comes out as advised or expected; one we deviate from on purpose does not."""
        wanted = {**case["expect"], **case["recommended"]} if "recommended" in case else case["expect"]
        if case["id"] == "sum-03":
            wanted = case["recommended"]
        found = answer(case)
        assert agrees(found, wanted) is (case["id"] not in DEVIATIONS), (found, wanted)

    def test_deviations_are_cases():
        """Every deviation names a case that is there; an area that is not ours is one of theirs."""
        assert DEVIATIONS.keys() <= {case["id"] for case in cases()}
        assert NOT_OURS.keys() <= json.loads((_FILES / "areas.json").read_text()).keys() - AREAS
