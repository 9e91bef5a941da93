"""How many turns a session shows, by its key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Policy, apply, plan
from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.planning.settings import ChannelLimits, UserLimits
from holdfast.planning.stages.history_limit import get_history_limit
from holdfast.state.view import build_projection

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
CHANNELS = {
    "irc": ChannelLimits(
        history_limit=30, dm_history_limit=9, dms={"ann": UserLimits(4), "bob": UserLimits(0), "eve": UserLimits()}
    ),
    "mail": ChannelLimits(dm_history_limit=3),
}


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("irc:dm:ann", 4),
        ("irc:direct:ann", 4),
        ("agent:main:irc:dm:ann", 4),
        ("agent:main:IRC:DM:ann", 4),
        ("irc:dm:Ann", 9),
        ("irc:dm:bob", 0),
        ("irc:dm:eve", 9),
        ("irc:dm:zoe", 9),
        ("irc:dm:ann:thread:77", 4),
        ("irc:dm:ann:topic:77", 4),
        ("irc:dm:ann:thread:x", 9),
        ("irc:dm:ann:thread:77:topic:8", 9),
        ("irc:group:ann", 30),
        ("irc:channel:room:thread:5", 30),
        ("irc:cron:daily", None),
        ("mail:group:room", None),
        ("mail:dm:zoe", 3),
        ("sms:dm:ann", None),
        ("irc", None),
        ("", None),
        (":::", None),
        ("agent:main", None),
    ],
)
def test_get_history_limit_prefers_the_users_own_limit(key, limit):
    """A user's own limit, even 0, wins over the channel's; groups have one; the case of the user's id counts."""
    assert get_history_limit(key, CHANNELS) == limit


@given(st.text(alphabet="agentirc:dm0", max_size=40))
def test_get_history_limit_accepts_any_key(key):
    """Whatever the key, its limit is one of the configured ones or None."""
    assert get_history_limit(key, CHANNELS) in {4, 0, 9, 30, 3, None}


def test_policy_for_session_applies_the_limit_of_the_key():
    """A policy takes the limit of the session's key; without one the policy itself is returned."""
    policy = Policy().with_settings(history={"channels": CHANNELS, "max_turns": 7})
    assert policy.for_session("irc:dm:ann").settings.history.max_turns == 4
    assert policy.for_session("irc:dm:bob").settings.history.max_turns == 0
    assert policy.for_session("main") is policy


def build_turns(turns):
    messages = []
    for number in range(turns):
        call = ToolCall(f"c{number}", "t")
        messages += [
            Message.from_text("user", f"u{number}"),
            Message("assistant", (call,)),
            Message("tool", (ToolResult(call.id, "t", (Text("r"),)),)),
        ]
    return messages


def list_shown_messages(messages, turns):
    """Return the messages that the request shows with a limit of ``turns``."""
    policy = Policy.preset("openclaw").with_settings(history={"max_turns": turns})
    return [sized.message for sized in build_projection(plan(messages, TARGET, policy).state)]


@given(st.integers(1, 6), st.integers(0, 7))
def test_history_limit_keeps_whole_turns_from_the_end(turns, limit):
    """What is kept is an end of the history that begins with a user message, or all of it; limiting twice changes
    nothing.
    """
    messages = build_turns(turns)
    kept = list_shown_messages(messages, limit)
    assert kept == messages[len(messages) - len(kept) :]
    assert sum(message.is_turn_start for message in kept) == (min(turns, limit) if limit else turns)
    assert list_shown_messages(kept, limit) == kept


def test_history_limit_drops_leading_messages_with_the_first_turn():
    """Messages before the first user message stay until a turn is cut, and go with the first one."""
    messages = [Message.from_text("assistant", "hello"), *build_turns(2)]
    assert list_shown_messages(messages, 2) == messages
    assert list_shown_messages(messages, 1) == build_turns(2)[3:]


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_history_limit_shows_exactly_the_limit_in_openclaw(turns):
    """[O] Exactly n turns are shown in each request; Holdfast cuts to half, so that the prefix stays for a while."""
    for name, allowed in (("openclaw", {turns}), ("holdfast", set(range(max(1, turns // 2), turns + 1)))):
        policy, state = Policy.preset(name).with_settings(history={"max_turns": turns}), None
        for length in range(1, 12):
            messages = build_turns(length)[:-2]
            new_plan = plan(messages, TARGET, policy, state=state)
            state = new_plan.state
            shown = sum(message.is_turn_start for message in apply(messages, new_plan))
            assert shown in ({length} if length <= turns else allowed), (name, length)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_history_limit_keeps_text_between_a_call_and_its_result_in_the_turn(turns):
    """User text between a call and its result belongs to the turn of the call and is shown with it."""
    call = Message("assistant", (ToolCall("c1", "bash"),))
    result = Message("tool", (ToolResult("c1", "bash", (Text("made"),)),))
    newest = [Message.from_text("user", "build it"), call, Message.from_text("user", "and hurry"), result]
    newest.append(Message.from_text("assistant", "built"))
    messages = [*build_turns(3), *newest]
    kept = list_shown_messages(messages, turns)
    assert kept[-5:] == newest
    assert kept == [*([] if turns == 1 else build_turns(3)[-3 * (turns - 1) :]), *newest]


def test_history_limit_keeps_text_beside_a_result_in_the_turn():
    """The same holds when text and result are in one message, as clients of Anthropic's API send them."""
    request, call = build_turns(1)[:2]
    result = Message("user", (ToolResult("c0", "t", (Text("r"),)), Text("and hurry")))
    messages = [Message.from_text("user", "old"), Message.from_text("assistant", "done"), request, call, result]
    assert list_shown_messages(messages, 1) == messages[2:]
