"""Worked cases of OpenClaw and pi about what a compaction reserves, checks and cuts; run where the corpus is present.

An adapter turns a case into library calls and their results into the terms of the case; it knows no answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compaction_trigger import DEFAULT_TARGET, build_target, find_first_compaction

from holdfast import PlanInputs, Policy, plan
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, Entry, MessageEntry

_FILES = Path(__file__).parents[3] / "shared" / "cases"

DEVIATIONS: dict[str, str] = {}
"""Cases that must differ from what is written, and why."""


def _load_cases():
    found = []
    for name in ("openclaw.json", "pi-opencode.json"):
        if (_FILES / name).exists():
            found += [case for case in json.loads((_FILES / name).read_text()) if case["area"] in ADAPTERS]
    return found


# -- OpenClaw ----------------------------------------------------------------------------------------------------------


def _run_reserve_case(case):
    config, current = case["params"]["config"], case["params"]["current"]
    policy = Policy.preset("openclaw").with_settings(
        preset={"trigger_reserve": config.get("reserveTokens", current)},
        reserve={"floor": config["reserveTokensFloor"]},
    )
    window = 200_000
    reserve = window - _find_largest_request(window, policy)
    return {"reserve": reserve, "override": reserve != current}


def _find_largest_request(window, policy):
    """Return the largest request that is not compacted.

    The first compacted usage plus the one-token user message after it is one token more.
    """
    return find_first_compaction(build_target(window), policy.with_settings(preset={"tail_tokens": 1}))


def _run_small_window_case(case):
    window = case["params"]["window"]
    budget = _find_largest_request(
        window, Policy.preset("openclaw").with_settings(preset={"trigger_reserve": case["params"]["reserve"]})
    )
    return {"effective_reserve": window - budget, "prompt_budget": budget}


def _build_openclaw_message(message):
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if message["role"] == "tool":
        texts = tuple(Text(block["text"]) for block in blocks)
        return Message("tool", (ToolResult(message["call_id"], message["name"], texts, message["is_error"]),))
    return Message(message["role"], tuple(map(_build_openclaw_part, blocks)))


def _build_openclaw_part(block):
    if block["type"] == "text":
        return Text(block["text"])
    return ToolCall(block["id"], block["name"], json.dumps(block["arguments"]))


def _run_conversation_case(case):
    """Return whether a forced compaction finds any user or assistant text, according to its notice."""
    messages = [_build_openclaw_message(message) for message in case["input"]]
    new_plan = plan(messages, DEFAULT_TARGET, Policy.preset("openclaw"), inputs=PlanInputs(force_compaction=True))
    return not any("no conversation yet" in notice.why for notice in new_plan.notices)


# -- pi ----------------------------------------------------------------------------------------------------------------

_PI = Policy.preset("pi")


def _run_pi_prepare_case(case):
    """Return the planner's summary request in pi's terms, or None if it requests none."""
    names = [entry["id"] for entry in case["input"] if entry["role"] != "compaction"]
    state = ConversationState.from_entries(
        Entry(entry["id"], None, _build_pi_body(entry, names)) for entry in case["input"]
    )
    policy = _PI.with_settings(preset={"tail_tokens": case["params"]["keepRecentTokens"]})
    messages = [sized.message for sized in state.history.sized_messages]
    request = plan(
        messages, DEFAULT_TARGET, policy, state=state, inputs=PlanInputs(force_compaction=True, can_summarize=True)
    ).summary_request
    if request is None:
        return None
    turn_start = max(at for at in range(request.stop + 1) if messages[at].role == "user")
    return {
        "firstKept": names[request.stop],
        "summarizeCount": request.stop - request.start,
        "turnPrefixCount": request.stop - turn_start,
        "isSplitTurn": turn_start < request.stop,
        "previousSummary": request.previous_summary or None,
        "summarizedFirstChars": messages[request.start].role,
    }


def _build_pi_body(entry, names):
    if entry["role"] == "compaction":
        summary = Message.from_text("user", entry["summary"])
        return CompactionEntry(
            names.index(entry["firstKept"]), summary, build_sized_message(summary).tokens, author="model"
        )
    return MessageEntry(build_sized_message(Message.from_text(entry["role"], "x" * entry["chars"])))


ADAPTERS = {
    "reserve": _run_reserve_case,
    "reserve-2026.9": _run_small_window_case,
    "real-conversation": _run_conversation_case,
    "pi.prepare": _run_pi_prepare_case,
}


if _load_cases():

    @pytest.mark.parametrize("case", _load_cases(), ids=lambda case: case["id"])
    def test_compaction_plan_case_matches_or_deviates_on_purpose(case):
        """Each case gives the recommended or expected result, and each deviation a different one."""
        expected = case.get("recommended", case["expect"])
        found = ADAPTERS[case["area"]](case)
        assert (found == expected) is (case["id"] not in DEVIATIONS), (found, expected)
