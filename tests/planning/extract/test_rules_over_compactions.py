"""Rules over compactions, by the sessions of ``bench/rules_over_compactions.py``; and that its reading can fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.projection import build_messages_to_send

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from rules_over_compactions import (
    DECOYS,
    OUR_POLICY,
    REVOKED,
    RULES,
    SETTINGS,
    Script,
    drive_session,
    make_script,
    read_request,
)

SMALL_WINDOW, SMALL_SETUP = SETTINGS[0]
SEEDS = st.integers(0, 10_000)


def build_whole_script(seed: int) -> Script:
    """Return a session until its last message."""
    script = make_script.__wrapped__(seed, SMALL_WINDOW)
    while script.extend():
        pass
    return script


@given(SEEDS)
@settings(max_examples=5)
def test_make_script_says_every_rule_once(seed):
    """Each rule, each change of it and each decoy stands in one message, a rule before what becomes of it."""
    script = build_whole_script(seed)
    texts = [sized_message.message.text for sized_message in script.messages if sized_message.message.role == "user"]
    assert len(script.rules) == RULES
    assert len([rule for rule in script.rules if rule.fate]) == REVOKED
    assert len(script.decoys) == DECOYS
    for rule in script.rules:
        assert sum(rule.text in text for text in texts) == 1
        assert rule.said_at >= 0
        assert bool(rule.fate) == (rule.fate_at >= rule.said_at)
    assert all(decoy.said_at >= 0 for decoy in script.decoys)
    words = [sized_message.message.text for sized_message in build_whole_script(seed).messages]
    assert words == [sized_message.message.text for sized_message in script.messages], "a seed is one session"


@given(SEEDS)
@settings(max_examples=5)
def test_read_request_tells_what_a_request_shows(seed):
    """The whole history keeps every rule and every revoked one beside its end; a request without it keeps none."""
    script = build_whole_script(seed)
    said = len(script.messages)
    whole = read_request(script, said, script.messages, 1)
    assert whole.lost == []
    assert whole.stale
    assert sum(number for key, number in whole.kept.items() if key.endswith("/gone")) == 0
    told, revoked = (
        sum(number for key, number in whole.kept.items() if key.endswith(end)) for end in ("/told", "/revoked")
    )
    assert told == revoked > 0
    empty = read_request(script, said, [build_sized_message(Message.from_text("user", "Go on."))], 1)
    assert len(empty.lost) == sum(number for key, number in empty.kept.items() if key.endswith("/in_force")) > 0
    assert empty.stale == []


@pytest.mark.parametrize("seed", range(3))
def test_plans_keep_rules_in_force_over_compactions(seed):
    """After each of five compactions every rule in force is there, no decoy passes for the user's, and a revoked rule
    that is still there stands beside what revoked it.
    """
    script = make_script.__wrapped__(seed, SMALL_WINDOW)
    revoked = gone = 0
    for count, compactions, plan in drive_session(script, OUR_POLICY, SMALL_WINDOW, SMALL_SETUP):
        if plan.compaction is None:
            continue
        reading = read_request(script, count, build_messages_to_send(plan), compactions)
        assert reading.lost == []
        assert reading.decoys_shown == []
        for what, number in reading.kept.items():
            gone += number if what.endswith("/gone") else 0
            revoked += number if what.endswith("/revoked") else 0
            if what.endswith("/revoked"):
                assert reading.kept[what.removesuffix("revoked") + "told"] == number
        if compactions == 5:
            break
    assert compactions == 5
    assert gone >= 0.3 * revoked
