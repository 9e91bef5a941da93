"""What is left out of a request once a provider takes no more what it had sealed, and what stays."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, ProviderSignature, Text, Thinking, ToolCall
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.signatures import DUMMY_SIGNATURE
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.recovery.signatures import DROP_SIGNATURES_RULE, LOST_HISTORY_TEXT, drop_signed_parts
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry
from holdfast.state.view import build_projection

GEMINI = get_target("gemini", "gemini-3-pro")
CLAUDE = get_target("anthropic", "claude-opus-5-5")
CHAT = get_target("openai-chat", "kimi-k3")
GPT = get_target("openai-responses", "gpt-5.5")
POLICY = Policy(stages=((DROP_SIGNATURES_RULE, drop_signed_parts),))


def planned(goal, *parts, then=(), asked="go"):
    """Return the plan of a conversation whose one answer has these parts."""
    told = [Message.from_text("user", asked), Message("assistant", parts), Message.from_text("user", "on")]
    bodies = [*(MessageEntry(build_sized_message(message)) for message in told), *then]
    return plan_request(
        ConversationState.from_entries(Entry(str(at), None, body) for at, body in enumerate(bodies)), goal, POLICY
    )


def left(plan):
    """Return the parts of the answer that the request shows."""
    return [slot.message.parts for slot in build_projection(plan.state)][1]


def seal(goal, data="c2VhbA==", model=""):
    return ProviderSignature(goal.api, model, data)


@pytest.mark.parametrize("goal", [CLAUDE, GPT, GEMINI])
def test_thinking_goes_whole_and_all_else_stays(goal):
    """Of thinking nothing may be kept but all of it; what frees tokens is counted."""
    rest = (Text("well"), ToolCall("c", "ls"))
    plan = planned(goal, Thinking("hm " * 40, seal(goal)), *rest)
    assert left(plan) == rest
    assert [(edit.rule, edit.span) for edit in plan.record] == [(DROP_SIGNATURES_RULE, Span(1, 2, 0))]
    assert plan.after < plan.before


def test_what_gemini_signed_beside_thinking_stays_without_its_signature():
    """Words and calls are said again, in bytes of our own; a stand-in of ours is no seal."""
    signed = (Text("well", seal(GEMINI), Raw(b"{}")), ToolCall("c", "ls", "{}", seal(GEMINI), Raw(b"{}")))
    stood_in = ToolCall("d", "ls", "{}", seal(GEMINI, DUMMY_SIGNATURE))
    plan = planned(GEMINI, *signed, stood_in)
    assert left(plan) == (Text("well"), ToolCall("c", "ls"), stood_in)


def test_other_seals_stay():
    """Ids that tie parts together, thinking of another model, which is not sent, and names of fields are none."""
    kept = (ToolCall("c", "ls", "{}", seal(CLAUDE, "srvtoolu_1")), Thinking("hm", seal(GPT)), Text("well"))
    assert planned(CLAUDE, *kept).record == ()
    assert planned(CLAUDE, Thinking("hm", seal(CLAUDE, model="claude-fable-5")), Text("well")).record == ()
    assert planned(CHAT, Thinking("hm", seal(CHAT, "reasoning_content")), Text("well")).record == ()


def test_sealed_details_of_a_chat_answer_go():
    """Servers of Chat Completions send what others sealed in a field of its own."""
    details = Opaque("message.reasoning_details", Raw(b'[{"type":"reasoning.encrypted","data":"c2VhbA=="}]'))
    assert left(planned(CHAT, Text("well"), details)) == (Text("well"),)


@pytest.mark.parametrize("part", [0, None], ids=["the part", "the message"])
def test_what_gave_way_already_is_left_alone(part):
    """No part is replaced twice, and what stands for a whole message has no seal."""
    put = () if part == 0 else (Message.from_text("assistant", "short"),)
    decided = DecisionEntry((Edit(Span(1, 2, part), put, "native"),))
    assert planned(CLAUDE, Thinking("hm", seal(CLAUDE)), Text("well"), then=[decided]).record == ()


NATIVE = msgspec.json.encode({"api": GPT.api, "model": GPT.model, "items": [{"type": "compaction"}], "tokens": 9})


def test_of_a_compaction_the_twin_is_shown():
    """The same head, in words; what the provider made stays in the log, behind an undo."""
    made = CompactionEntry(1, Message.from_text("user", "what was"), 9, native=Raw(NATIVE), author="native")
    plan = planned(GPT, Text("well"), then=[made])
    assert plan.compaction is not None
    assert (plan.compaction.first_kept, plan.compaction.summary, plan.compaction.native) == (1, made.summary, None)
    assert build_projection(plan.state)[0].raw is None
    assert plan.state.view.shown_tokens == sum(slot.tokens for slot in build_projection(plan.state))


@pytest.mark.parametrize(
    ("goal", "words", "native"),
    [(CLAUDE, "what was", NATIVE), (GPT, "", NATIVE), (GPT, "what was", None)],
    ids=["of another API", "without words", "a summary"],
)
def test_a_compaction_that_has_no_seal_or_no_twin_stays(goal, words, native):
    """What is not sent is not refused; nothing readable is nothing to show; a summary in words is sealed by nobody."""
    summary = Message.from_text("user", words) if words else Message("user")
    made = CompactionEntry(1, summary, 9, native=None if native is None else Raw(native))
    assert planned(goal, Text("well"), then=[made]).compaction is None


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary"])
def test_a_past_that_was_compacted_by_a_client_is_missed_by_a_line(kind):
    """On Responses it cannot be read; Anthropic's can, and what stands before it would be shown again without it."""
    past = Opaque(kind, Raw(b'{"type":"compaction"}'))
    assert left(planned(GPT, past, Text("well"))) == (Text(LOST_HISTORY_TEXT), Text("well"))
    assert left(planned(CLAUDE, past, Text("well"))) == (past, Text("well"))
