"""Edits of a caller's stage are checked before they are folded into the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import ConversationState, Message, Policy, Text, get_target, plan
from holdfast.types import Edit, PlanBuilder, Span

TARGET = get_target("anthropic", "claude-sonnet-4-5")
MESSAGES = [
    Message("user", (Text("Fix the test."),)),
    Message("assistant", (Text("Done."),)),
    Message("user", (Text("Thanks."),)),
]


def build_policy(stage: Callable[[PlanBuilder], PlanBuilder]) -> Policy:
    return Policy().insert_stage_before("media", "mine", stage)


def plan_with_edits(edits: Any) -> None:
    plan(MESSAGES, TARGET, build_policy(lambda builder: builder.add_edits(edits)))


def test_add_edits_takes_a_part_edit_and_a_message_edit():
    """A stage may replace one part of a message, or whole messages."""
    part_edit = Edit(Span(0, 1, 0), (Text("Fix it."),))
    message_edit = Edit(Span(1, 2), (Message("assistant", (Text("OK."),)),))
    for edits in ((part_edit, message_edit), [part_edit, message_edit]):
        planned = plan(MESSAGES, TARGET, build_policy(lambda builder, edits=edits: builder.add_edits(edits)))
        assert planned.record == (part_edit, message_edit)


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        (5, "edits is of type int; give a value of type tuple or list"),
        (Edit(Span(0, 1, 0), ()), "edits is of type Edit; give a value of type tuple or list"),
        ((5,), r"edits\[0\] is not a valid edit"),
        ((Edit(Span("0", 1)),), r"edits\[0\] is not a valid edit: .*\$\.span\.start"),  # type: ignore[arg-type]
        ((Edit(Span(0, 1), 5),), r"edits\[0\] is not a valid edit: .*\$\.replacement"),  # type: ignore[arg-type]
        ((Edit(None, ()),), r"edits\[0\] is not a valid edit: .*\$\.span"),  # type: ignore[arg-type]
        ((Edit(Span(0, 1, 0), (Text("x"),), saves="5"),), r"\$\.saves"),  # type: ignore[arg-type]
        ((Edit(Span(0, 1), (Text("x"),)),), "a part is replaced by parts, and messages by messages"),
        ((Edit(Span(0, 1, 0), (Message("user", ()),)),), "a part is replaced by parts, and messages by messages"),
    ],
)
def test_add_edits_names_the_value_of_a_wrong_type(edits: Any, words: str):
    """A wrong value is a ``TypeError`` that says where it stands and what to give."""
    with pytest.raises(TypeError, match=words):
        plan_with_edits(edits)


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (Span(0, 9), "messages 0 to 9 .* has 3 messages"),
        (Span(-1, 1), "messages -1 to 1"),
        (Span(2, 1), "messages 2 to 1"),
        (Span(4, 4), "messages 4 to 4"),
        (Span(3, 3, 0), "a part of message 3; the history has 3 messages"),
        (Span(0, 1, 7), "part 7 of message 0; that message has 1 part,"),
        (Span(0, 1, -1), "part -1 of message 0"),
    ],
)
def test_add_edits_names_a_span_outside_the_history(span: Span, words: str):
    """A span that does not exist is an ``IndexError`` with the numbers."""
    replacement = () if span.part is None else (Text("x"),)
    with pytest.raises(IndexError, match=words):
        plan_with_edits((Edit(span, replacement),))


@pytest.mark.parametrize("field", ["history", "view", "setup", "last_request", "usage", "counters"])
def test_plan_names_the_field_of_a_state_built_by_hand(field: str):
    """A state with a value of another type is a ``TypeError`` that names the field."""
    state = replace(ConversationState(), **{field: 5})
    with pytest.raises(TypeError, match=rf"state\.{field} is of type int"):
        plan(MESSAGES, TARGET, state=state)
