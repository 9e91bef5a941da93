"""The worked cases of OpenClaw and pi about what a compaction reserves, judges and cuts, where they are there.

An adapter turns a case into calls of the library and what comes back into the words of the case; it knows no answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compaction_trigger import PLACE, first_compaction, place

from holdfast import PlanInputs, Policy, plan
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, Entry, MessageEntry

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
        preset={"trigger_reserve": asked.get("reserveTokens", current)}, reserve={"floor": asked["reserveTokensFloor"]}
    )
    window = 200_000
    found = window - _most_held(window, policy)
    return {"reserve": found, "override": found != current}


def _most_held(window, policy):
    """Return the most tokens that a request may have without a compaction.

    What is first compacted is one over it; the words that the user says behind that usage are one token more.
    """
    return first_compaction(place(window), policy.with_settings(preset={"tail_tokens": 1}))


def _small_window(case):
    window = case["params"]["window"]
    budget = _most_held(
        window, Policy.preset("openclaw").with_settings(preset={"trigger_reserve": case["params"]["reserve"]})
    )
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
    """Return whether a compaction by hand finds anything that was said, as its notice tells it."""
    said = [_openclaw_message(one) for one in case["input"]]
    made = plan(said, PLACE, Policy.preset("openclaw"), inputs=PlanInputs(force_compaction=True))
    return not any("no conversation yet" in notice.why for notice in made.notices)


# -- pi ----------------------------------------------------------------------------------------------------------------

_PI = Policy.preset("pi")


def _prepare(case):
    """Return what the planner asks a writer for, in pi's words; nothing where it asks for nothing."""
    names = [one["id"] for one in case["input"] if one["role"] != "compaction"]
    branch = ConversationState.from_entries(Entry(one["id"], None, _pi_body(one, names)) for one in case["input"])
    policy = _PI.with_settings(preset={"tail_tokens": case["params"]["keepRecentTokens"]})
    messages = [slot.message for slot in branch.history.sized_messages]
    ask = plan(
        messages, PLACE, policy, state=branch, inputs=PlanInputs(force_compaction=True, can_summarize=True)
    ).summary_request
    if ask is None:
        return None
    begins = max(at for at in range(ask.stop + 1) if messages[at].role == "user")
    return {
        "firstKept": names[ask.stop],
        "summarizeCount": ask.stop - ask.start,
        "turnPrefixCount": ask.stop - begins,
        "isSplitTurn": begins < ask.stop,
        "previousSummary": ask.previous_summary or None,
        "summarizedFirstChars": messages[ask.start].role,
    }


def _pi_body(one, names):
    if one["role"] == "compaction":
        summary = Message.from_text("user", one["summary"])
        return CompactionEntry(
            names.index(one["firstKept"]), summary, build_sized_message(summary).tokens, author="model"
        )
    return MessageEntry(build_sized_message(Message.from_text(one["role"], "x" * one["chars"])))


ADAPTERS = {
    "reserve": _reserve,
    "reserve-2026.9": _small_window,
    "real-conversation": _conversation,
    "pi.prepare": _prepare,
}


if _cases():

    @pytest.mark.parametrize("case", _cases(), ids=lambda case: case["id"])
    def test_case(case):
        """Each case comes out as it is written, or as recommended; a deviation does not."""
        wanted = case.get("recommended", case["expect"])
        found = ADAPTERS[case["area"]](case)
        assert (found == wanted) is (case["id"] not in DEVIATIONS), (found, wanted)
