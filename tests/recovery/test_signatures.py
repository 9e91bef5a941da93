"""What is dropped from a request once a provider refuses its signed parts, and what stays."""

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


def plan_conversation(target, *parts, then=()):
    """Plan a request of a conversation whose one answer has these parts."""
    messages = [Message.from_text("user", "go"), Message("assistant", parts), Message.from_text("user", "on")]
    bodies = [*(MessageEntry(build_sized_message(message)) for message in messages), *then]
    return plan_request(
        ConversationState.from_entries(Entry(str(at), None, body) for at, body in enumerate(bodies)), target, POLICY
    )


def get_answer_parts(plan):
    """Return the parts of the answer in the planned request."""
    return [slot.message.parts for slot in build_projection(plan.state)][1]


def make_signature(target, data="c2VhbA==", model=""):
    return ProviderSignature(target.api, model, data)


@pytest.mark.parametrize("target", [CLAUDE, GPT, GEMINI])
def test_drop_signed_parts_removes_signed_thinking_whole(target):
    """Signed thinking is removed whole, everything else stays, and the freed tokens are counted."""
    rest = (Text("well"), ToolCall("c", "ls"))
    plan = plan_conversation(target, Thinking("hm " * 40, make_signature(target)), *rest)
    assert get_answer_parts(plan) == rest
    assert [(edit.rule, edit.span) for edit in plan.record] == [(DROP_SIGNATURES_RULE, Span(1, 2, 0))]
    assert plan.after < plan.before


def test_drop_signed_parts_strips_gemini_signatures():
    """Gemini's signed text and calls stay without their signature and bytes; our dummy signature is kept."""
    signed = (
        Text("well", make_signature(GEMINI), Raw(b"{}")),
        ToolCall("c", "ls", "{}", make_signature(GEMINI), Raw(b"{}")),
    )
    dummy_signed = ToolCall("d", "ls", "{}", make_signature(GEMINI, DUMMY_SIGNATURE))
    plan = plan_conversation(GEMINI, *signed, dummy_signed)
    assert get_answer_parts(plan) == (Text("well"), ToolCall("c", "ls"), dummy_signed)


def test_drop_signed_parts_keeps_other_signatures():
    """Ids that link parts, thinking of another model, which is not sent, and field names are kept."""
    kept = (
        ToolCall("c", "ls", "{}", make_signature(CLAUDE, "srvtoolu_1")),
        Thinking("hm", make_signature(GPT)),
        Text("well"),
    )
    assert plan_conversation(CLAUDE, *kept).record == ()
    assert (
        plan_conversation(CLAUDE, Thinking("hm", make_signature(CLAUDE, model="claude-fable-5")), Text("well")).record
        == ()
    )
    assert plan_conversation(CHAT, Thinking("hm", make_signature(CHAT, "reasoning_content")), Text("well")).record == ()


def test_drop_signed_parts_removes_encrypted_chat_details():
    """Chat Completions servers return encrypted reasoning in its own field, and that field is removed."""
    details = Opaque("message.reasoning_details", Raw(b'[{"type":"reasoning.encrypted","data":"c2VhbA=="}]'))
    assert get_answer_parts(plan_conversation(CHAT, Text("well"), details)) == (Text("well"),)


@pytest.mark.parametrize("part", [0, None], ids=["the part", "the message"])
def test_drop_signed_parts_ignores_replaced_parts(part):
    """No part is replaced twice, and the replacement of a whole message has no signature."""
    replacement = () if part == 0 else (Message.from_text("assistant", "short"),)
    decision = DecisionEntry((Edit(Span(1, 2, part), replacement, "native"),))
    assert plan_conversation(CLAUDE, Thinking("hm", make_signature(CLAUDE)), Text("well"), then=[decision]).record == ()


NATIVE = msgspec.json.encode({"api": GPT.api, "model": GPT.model, "items": [{"type": "compaction"}], "tokens": 9})


def test_drop_signed_parts_replaces_a_native_compaction_by_its_summary():
    """The same head is shown as the text summary, and the native compaction stays in the log, available to an undo."""
    compaction = CompactionEntry(1, Message.from_text("user", "what was"), 9, native=Raw(NATIVE), author="native")
    plan = plan_conversation(GPT, Text("well"), then=[compaction])
    assert plan.compaction is not None
    assert (plan.compaction.first_kept, plan.compaction.summary, plan.compaction.native) == (
        1,
        compaction.summary,
        None,
    )
    assert build_projection(plan.state)[0].raw is None
    assert plan.state.view.shown_tokens == sum(slot.tokens for slot in build_projection(plan.state))


@pytest.mark.parametrize(
    ("target", "text", "native"),
    [(CLAUDE, "what was", NATIVE), (GPT, "", NATIVE), (GPT, "what was", None)],
    ids=["another API", "no summary", "not native"],
)
def test_drop_signed_parts_keeps_compactions_without_native_or_summary(target, text, native):
    """A native compaction of another API is not sent, one without a summary could not be shown, and a text summary is
    not signed.
    """
    summary = Message.from_text("user", text) if text else Message("user")
    compaction = CompactionEntry(1, summary, 9, native=None if native is None else Raw(native))
    assert plan_conversation(target, Text("well"), then=[compaction]).compaction is None


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary"])
def test_drop_signed_parts_replaces_a_client_compaction_with_a_line(kind):
    """On Responses a client's compaction is encrypted and becomes a line; Anthropic's is readable and stays."""
    client_compaction = Opaque(kind, Raw(b'{"type":"compaction"}'))
    assert get_answer_parts(plan_conversation(GPT, client_compaction, Text("well"))) == (
        Text(LOST_HISTORY_TEXT),
        Text("well"),
    )
    assert get_answer_parts(plan_conversation(CLAUDE, client_compaction, Text("well"))) == (
        client_compaction,
        Text("well"),
    )
