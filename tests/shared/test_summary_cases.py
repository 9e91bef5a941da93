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
from msgspec.structs import replace
from reference import openclaw, openclaw_chunks, openclaw_turns, opencode
from reference.pi import carried, files

from holdfast import Policy, World
from holdfast.config import target
from holdfast.errors import CompactionFailed, UpstreamError
from holdfast.model.branch import Branch
from holdfast.model.entries import Compaction, Entry, Said
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolCall, ToolResult
from holdfast.model.plan import Ask
from holdfast.policy.measures import estimate_tokens
from holdfast.policy.pipeline import advance
from holdfast.policy.select import cut_point
from holdfast.policy.settings import Settings
from holdfast.policy.summary.prompts import HEADINGS
from holdfast.runtime.summarise import Terms, Writer, summarise
from holdfast.testing.clock import FakeClock
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.calls import Said as Answered
from holdfast.testing.upstream import ScriptedUpstream
from holdfast.view.tokens import measure
from holdfast.wire.lens import open_body

_FILES = Path(__file__).parents[3] / "shared" / "cases"
AREAS = {
    "chunking", "summary", "history-share", "quality", "recent-turns", "tool-failures", "pi.summary", "pi.file_ops",
    "opencode.process_compaction",
}  # fmt: skip

DEVIATIONS = {
    "sum-02": "a message that is too large is told shorter, never left out; while it fails nothing is written",
}
"""Cases that must not come out as written, and why."""

LOOSE = Settings(summary_least=0, summary_identifiers=0)
SUMMARY = "\n".join(f"## {name}\n(none)" for name in HEADINGS).replace("(none)", "- sort the harbour files", 1)


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
        self.read.append(open_body(sent.body).slots[-1].message.text)
        if self.fails(self.read[-1]):
            raise UpstreamError("the tide is out", "server")
        said = SUMMARY.replace("(none)", f"- S{len(self.read)} barnacle kelp", 1)
        async with ScriptedUpstream([said]).send(sent) as reply:
            yield reply


def written(upstream, head, *, window=200_000, **ask):
    """Return the text of the summary of ``head``, or the error where none came."""
    writer = Writer(upstream, target("anthropic", "claude-opus-5-5", window=window))
    settings = replace(LOOSE, summary_wait_least=0.0, summary_wait_most=0.0)

    async def go():
        wanted = Ask(0, len(head), 4_000, **ask)
        return await summarise([measure(one) for one in head], wanted, [writer], Terms(settings))

    try:
        return anyio.run(go).text
    except CompactionFailed as failed:
        return failed


# -- OpenClaw ----------------------------------------------------------------------------------------------------------


def chunking(case):
    sizes = [estimate_tokens(one) for one in messages(case)]
    return openclaw_chunks.chunk_ratio(sizes, case["params"]["window"])


def summary(case):
    when = case["params"]["fail_when"]
    big = {one["id"]: one["content"] for one in case["input"]}
    stub = Stub(lambda text: bool(when.get("all")) or big[when["contains"]][:500] in text)
    told = written(stub, messages(case), window=case["params"]["window"])
    if isinstance(told, CompactionFailed) and told.outcome == "provider_error":
        return {"result": "no summary is written, history is kept, failure is reported"}
    return {"result": told, "calls": stub.read}


def history_share(case):
    asked = case["params"]
    found = openclaw_chunks.within_share(messages(case), asked["window"], asked["share"])
    return {
        "kept": names(case, found.kept),
        "dropped": names(case, found.dropped),
        "chunks": found.chunks,
        "count": len(found.dropped),
        "budget": found.budget,
    }


def recent_turns(case):
    if "values" in case["params"]:
        return [openclaw_turns.turns_kept(value) for value in case["params"]["values"]]
    kept = openclaw_turns.recent(messages(case), case["params"]["turns"])
    ids = [one["id"] for one in case["input"]]
    return {
        "summarise": [id_ for at, id_ in enumerate(ids) if at not in kept],
        "keep": [id_ for at, id_ in enumerate(ids) if at in kept],
    }


def quality(case):
    asked = case["params"]
    if "text" in asked:
        return list(openclaw.identifiers(asked["text"]))
    told = openclaw.complaints(asked["summary"], asked["identifiers"], asked["ask"], asked.get("policy", "strict"))
    return {"ok": not told, "reasons": told}


def tool_failures(case):
    lines = openclaw_turns.failures_section(messages(case)).splitlines()
    count = len(openclaw_turns.failures(messages(case)))
    return {"count": count, "section_lines": len(lines) - 1, "last": lines[-1]}


# -- pi ----------------------------------------------------------------------------------------------------------------


def pi_message(one):
    calls = [ToolCall(call["id"], call["name"], json.dumps(call["args"])) for call in one.get("calls", [])]
    return Message(one["role"], (Text("x" * one.get("chars", 0)), *calls))


def pi_file_ops(case):
    """Return the files of what is summarised: all before the kept tail that the summary before did not cover."""
    given, keep = case["input"], case["params"].get("keepRecentTokens")
    before = next((one for one in given if one["role"] == "compaction"), None)
    said = [pi_message(one) for one in given if one["role"] != "compaction"]
    head = said if keep is None else said[: cut_point(said, keep).start]
    known = carried(before["details"], from_hook=before.get("fromHook", False)) if before else carried({})
    found = files(head, known)
    return {"readFiles": [*found.read], "modifiedFiles": [*found.changed], "tail": found.tail}


def pi_summary(case):
    head = [Message.of("user", "Sort the harbour files"), Message.of("assistant", "Done.")]
    log = [Entry(str(at), None, Said(measure(one))) for at, one in enumerate(head)]
    before = Branch.build(log).dump()
    told = written(ScriptedUpstream([Answered(SUMMARY, stop=case["input"]["summary_stop_reason"])] * 2), head)
    return {"throws": isinstance(told, CompactionFailed), "session_unchanged": Branch.build(log).dump() == before}


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


def overflowing(given):
    """Return what comes of a compaction whose own request is over the limit, however small it is made."""
    large = Refusal(400, "invalid_request_error", "prompt is too long: 300000 tokens > 200000 maximum")
    told = written(ScriptedUpstream([large] * 2), [Message.of("user", "word " * 3_000)])
    assert isinstance(told, CompactionFailed)
    text = opencode.too_large(replayed=given["replay"])
    return {"returns": "stop", "message_contains": text.partition(":")[0]}


def continued(given):
    hook = next((value for key, value in given.items() if "autocontinue" in key), "")
    allowed = hook != "enabled=false"
    replayed = given.get("replay", False)
    text = opencode.continuation(auto=given["auto"], replayed=replayed, allowed=allowed)
    return {"continue_message": bool(text), "replay_message": replayed, "returns": "continue"}


def anchored(given):
    """Return what is asked of the writer at a second compaction, as our planner and our prompt ask for it."""
    texts = {name: f"{name} " + "barnacle kelp " * 2_000 for name in ("c1", "u2", "a2")}
    old = re.search(r'"(\w+)"', given["history"][1])[1]
    before = Message("user", (Text("the summary before"), Text(old)))
    entries = [Said(measure(Message.of("user", texts["c1"]))), Compaction(1, before, 10, by="model")]
    entries += [Said(measure(Message.of(role, texts[name]))) for role, name in (("user", "u2"), ("assistant", "a2"))]
    entries.append(Said(measure(Message.of("user", "go on"))))
    branch = Branch.build(Entry("", None, body) for body in entries)
    where = target("anthropic", "claude-opus-5-5", window=40_000)
    ask = advance(branch, where, Policy(), World(force=True, writes=True)).ask
    stub = Stub(lambda _: False)
    written(stub, branch.messages.slice(ask.start, ask.stop), anchor=ask.anchor)
    prompt = stub.read[0]
    return {
        "prompt_contains_once": old if prompt.count(old) == 1 else "",
        "prompt_has": "<previous-summary>" if "<previous-summary>" in prompt else "",
        "hidden_from_head_and_sizing": [
            name for name in ("c1", "s1") if texts.get(name, old) not in prompt.split("<conversation>")[1]
        ],
    }


def stray_call():
    told = written(ScriptedUpstream([Answered("", (("read", {"path": "a"}),)), SUMMARY]), [Message.of("user", "sort")])
    return {"tool_parts_in_summary": 0 if told == SUMMARY else 1}


def aborted(given):
    """Return what is left of a compaction that is aborted: in the pause before a retry, or before it begins."""
    busy = Refusal(503, "overloaded_error", "busy", retry_after=10.0)
    upstream, clock = ScriptedUpstream([busy] * 3), FakeClock()
    begins = any("back-off" in key for key in given)

    async def go():
        with anyio.move_on_after(0.05 if begins else 0.0) as scope:
            writer = Writer(upstream, target("anthropic", "claude-opus-5-5"))
            return await summarise([measure(Message.of("user", "sort"))], Ask(0, 1, 4_000), [writer])
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
        """Every deviation names a case that is there."""
        assert DEVIATIONS.keys() <= {case["id"] for case in cases()}
