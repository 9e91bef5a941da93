"""``plan`` and ``apply`` say what is wrong with what they are given, before anything is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Message, Policy, Target, apply, plan
from holdfast.model.parts import Text

HELLO = [Message.of("user", "hello")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"messages": None}, "messages is of type NoneType; give a value of type Sequence"),
        ({"messages": HELLO[0]}, "messages is of type Message; give a value of type Sequence"),
        ({"messages": [{"role": "user", "content": "hi"}]}, r"messages\[0\] is a dict; plan takes Message values"),
        ({"target": "claude-sonnet-4-5"}, "target is of type str; give a value of type Target"),
        ({"policy": "holdfast"}, "policy is of type str; give a value of type Policy"),
        ({"branch": plan(HELLO, Target())}, "branch is of type Plan; give a value of type .*Branch"),
        ({"world": {"force": True}}, "world is of type dict; give a value of type World"),
    ],
)
def test_a_plan_is_made_of_its_own_values(given: dict[str, Any], told: str) -> None:
    """A value of another type is a ``TypeError`` that names the argument, its type and the one that is wanted."""
    with pytest.raises(TypeError, match=f"^{told}"):
        plan(**{"messages": HELLO, "target": Target(), "policy": Policy(), **given})


@pytest.mark.parametrize(
    ("parts", "place"), [("hello", "$.parts"), (("hello",), "$.parts[0]"), ((Text(None),), "$.parts[0].text")]
)
def test_a_message_that_is_none_is_told_by_its_place(parts: Any, place: str) -> None:
    """Messages are made without being checked; the one whose parts are none is named, with the place in it."""
    with pytest.raises(TypeError, match=r"^messages\[1\] is no message: ") as raised:
        plan([*HELLO, Message("user", parts)], Target())
    assert f"at `{place}`" in str(raised.value)


def test_a_plan_is_applied_to_messages() -> None:
    """Arguments that were swapped, and a branch in place of its plan, are told as such."""
    planned = plan(HELLO, Target())
    with pytest.raises(TypeError, match=r"^messages is of type Plan"):
        apply(planned, HELLO)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^plan is of type Branch; give a value of type Plan"):
        apply(HELLO, planned.branch)  # type: ignore[arg-type]
