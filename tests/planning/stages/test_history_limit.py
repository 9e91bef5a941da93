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

PLACE = get_target("anthropic", "claude-sonnet-4-5", window=100_000)
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
def test_the_limit_of_a_key(key, limit):
    """A user's own limit, also 0, before the channel's; groups have one; the case of the user's id counts."""
    assert get_history_limit(key, CHANNELS) == limit


@given(st.text(alphabet="agentirc:dm0", max_size=40))
def test_any_key_has_a_limit_or_none(key):
    """Whatever a key looks like, its limit is one of those that were set, or nothing."""
    assert get_history_limit(key, CHANNELS) in {4, 0, 9, 30, 3, None}


def test_a_policy_for_a_session():
    """A policy takes the limit of the session's key; where there is none it stays as it is."""
    policy = Policy().with_settings(history={"channels": CHANNELS, "max_turns": 7})
    assert policy.for_session("irc:dm:ann").settings.history.max_turns == 4
    assert policy.for_session("irc:dm:bob").settings.history.max_turns == 0
    assert policy.for_session("main") is policy


def talk(turns):
    said = []
    for number in range(turns):
        call = ToolCall(f"c{number}", "t")
        said += [
            Message.from_text("user", f"u{number}"),
            Message("assistant", (call,)),
            Message("tool", (ToolResult(call.id, "t", (Text("r"),)),)),
        ]
    return said


def limited(said, turns):
    """Return the messages that the stage leaves in sight where so many turns are shown."""
    policy = Policy.preset("openclaw").with_settings(history={"max_turns": turns})
    return [slot.message for slot in build_projection(plan(said, PLACE, policy).state)]


@given(st.integers(1, 6), st.integers(0, 7))
def test_the_last_turns_with_all_that_belongs_to_them(turns, limit):
    """What is kept is an end of the history that begins with a user, or all of it; twice is once."""
    said = talk(turns)
    kept = limited(said, limit)
    assert kept == said[len(said) - len(kept) :]
    assert sum(message.is_turn_start for message in kept) == (min(turns, limit) if limit else turns)
    assert limited(kept, limit) == kept


def test_what_stands_before_the_first_user_goes_with_the_first_turn():
    """Words before the first user stay while no turn is cut, and go with it."""
    said = [Message.from_text("assistant", "hello"), *talk(2)]
    assert limited(said, 2) == said
    assert limited(said, 1) == talk(2)[3:]


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_the_presets_show_exactly_so_many(turns):
    """[O] exactly n turns are shown at each request; ours cuts to half, so that the prefix stands for a while."""
    for name, allowed in (("openclaw", {turns}), ("holdfast", set(range(max(1, turns // 2), turns + 1)))):
        policy, branch = Policy.preset(name).with_settings(history={"max_turns": turns}), None
        for length in range(1, 12):
            said = talk(length)[:-2]
            made = plan(said, PLACE, policy, state=branch)
            branch = made.state
            shown = sum(message.is_turn_start for message in apply(said, made))
            assert shown in ({length} if length <= turns else allowed), (name, length)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_words_between_a_call_and_its_result_are_no_turn_of_their_own(turns):
    """They belong to the turn of the call: the last n turns are shown whole, these words with them."""
    call = Message("assistant", (ToolCall("c1", "bash"),))
    result = Message("tool", (ToolResult("c1", "bash", (Text("made"),)),))
    newest = [Message.from_text("user", "build it"), call, Message.from_text("user", "and hurry"), result]
    newest.append(Message.from_text("assistant", "built"))
    said = [*talk(3), *newest]
    kept = limited(said, turns)
    assert kept[-5:] == newest
    assert kept == [*([] if turns == 1 else talk(3)[-3 * (turns - 1) :]), *newest]


def test_words_beside_a_result_belong_to_the_turn_of_the_call():
    """The same where they stand in one message with the result, as clients of Anthropic's API send them."""
    asked, called = talk(1)[:2]
    answered = Message("user", (ToolResult("c0", "t", (Text("r"),)), Text("and hurry")))
    said = [Message.from_text("user", "old"), Message.from_text("assistant", "done"), asked, called, answered]
    assert limited(said, 1) == said[2:]
