"""The worked cases of OpenClaw and pi about what a compaction reserves, judges and cuts, where they are there.

An adapter turns a case into calls of the library and what comes back into the words of the case; it knows no answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import Policy, World
from holdfast.config import target
from holdfast.model.branch import Branch
from holdfast.model.entries import Compaction, Entry, Said
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolCall, ToolResult
from holdfast.model.target import Limits
from holdfast.policy.pipeline import advance
from holdfast.policy.select import cut_point
from holdfast.policy.triggers import line
from holdfast.view.conversation import is_real
from holdfast.view.tokens import measure

_FILES = Path(__file__).parents[3] / "shared" / "cases"

DEVIATIONS: dict[str, str] = {}
"""Cases that must not come out as written, and why."""


def _cases():
    found = []
    for name in ("openclaw.json", "pi-opencode.json"):
        if (_FILES / name).exists():
            found += [case for case in json.loads((_FILES / name).read_text()) if case["area"] in ADAPTERS]
    return found


# -- OpenClaw ----------------------------------------------------------------------------------------------------------


def _reserve(case):
    asked, current = case["params"]["config"], case["params"]["current"]
    policy = Policy.preset("openclaw").with_settings(
        trigger_reserve=asked.get("reserveTokens", current), reserve_floor=asked["reserveTokensFloor"]
    )
    window = 200_000
    found = window - line(Limits(window), policy.settings)
    return {"reserve": found, "override": found != current}


def _small_window(case):
    window = case["params"]["window"]
    settings = Policy.preset("openclaw").with_settings(trigger_reserve=case["params"]["reserve"]).settings
    budget = line(Limits(window), settings)
    return {"effective_reserve": window - budget, "prompt_budget": budget}


def _openclaw_message(said):
    content = said["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if said["role"] == "tool":
        texts = tuple(Text(block["text"]) for block in blocks)
        return Message("tool", (ToolResult(said["call_id"], said["name"], texts, said["is_error"]),))
    return Message(said["role"], tuple(map(_openclaw_part, blocks)))


def _openclaw_part(block):
    if block["type"] == "text":
        return Text(block["text"])
    return ToolCall(block["id"], block["name"], json.dumps(block["arguments"]))


def _conversation(case):
    return is_real([_openclaw_message(one) for one in case["input"]])


# -- pi ----------------------------------------------------------------------------------------------------------------

_PI = Policy.preset("pi")


def _prepare(case):
    """Return what the planner asks a writer for, in pi's words; nothing where it asks for nothing."""
    names = [one["id"] for one in case["input"] if one["role"] != "compaction"]
    branch = Branch.build(Entry(one["id"], None, _pi_body(one, names)) for one in case["input"])
    policy = _PI.with_settings(tail_tokens=case["params"]["keepRecentTokens"])
    ask = advance(branch, target("anthropic", "claude-sonnet-4-5"), policy, World(force=True, writes=True)).ask
    if ask is None:
        return None
    cut = cut_point(branch.messages.slice(branch.keep), policy.settings.tail_tokens)
    return {
        "firstKept": names[ask.stop],
        "summarizeCount": ask.stop - ask.start,
        "turnPrefixCount": 0 if cut.turn is None else cut.start - cut.turn,
        "isSplitTurn": cut.turn is not None,
        "previousSummary": ask.anchor or None,
        "summarizedFirstChars": branch.messages[ask.start].role,
    }


def _pi_body(one, names):
    if one["role"] == "compaction":
        summary = Message.of("user", one["summary"])
        return Compaction(names.index(one["firstKept"]), summary, measure(summary).size, by="model")
    return Said(measure(Message.of(one["role"], "x" * one["chars"])))


ADAPTERS = {
    "reserve": _reserve,
    "reserve-2026.9": _small_window,
    "real-conversation": _conversation,
    "pi.prepare": _prepare,
}


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case["id"])
def test_case(case):
    """Each case comes out as it is written, or as recommended; a deviation does not."""
    wanted = case.get("recommended", case["expect"])
    found = ADAPTERS[case["area"]](case)
    assert (found == wanted) is (case["id"] not in DEVIATIONS), (found, wanted)
