"""Which form a server wants: written down beside its refusal, and true wherever the conversation goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.calibration.calibration import LearnedLimits
from holdfast.state.conversation_state import ConversationState
from holdfast.store.memory import MemoryStore

GOAL = get_target("openai-chat", "local-7b")
SAID = [build_sized_message(Message.from_text(role, role)) for role in ("user", "assistant", "user")]


def told(journal):
    """Return what ``journal`` knows of the form."""
    return (
        journal.state.usage.learned_limits.fixes_client_content,
        journal.state.usage.learned_limits.validates_client_content,
    )


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_the_form_that_a_server_wants_is_known_wherever_its_model_is_asked(wanted):
    """same-after-restart: it is so after a restart and on a fork, whatever window is configured or forgotten, until it
    is taken back.

    Another model of the same session wants what it wants.
    """
    store = MemoryStore()
    journal = Journal.open(store, SAMPLE_KEY)
    journal.follow_conversation(SAID)
    journal.prepare_request(GOAL)
    journal.record_accepted_form(mends=wanted[0], judges=wanted[1])
    entries = store.get_session(SAMPLE_KEY).entry_count
    journal.record_accepted_form(mends=wanted[0], judges=wanted[1])
    assert store.get_session(SAMPLE_KEY).entry_count == entries
    assert told(journal) == told(Journal.open(store, SAMPLE_KEY)) == wanted
    fork = Journal.open(store, SAMPLE_KEY)
    fork.follow_conversation([*SAID[:2], build_sized_message(Message.from_text("user", "else"))])
    assert told(fork) == told(Journal.open(store, SAMPLE_KEY, leaf=fork.leaf)) == wanted
    fork.prepare_request(replace(GOAL, limits=replace(GOAL.limits, window=50_000)))
    fork.record_overflow("too large", 40_000)
    fork.forget_learned_window()
    assert told(fork) == wanted
    assert (
        replace(fork.state.usage.learned_limits, fixes_client_content=False, validates_client_content=False)
        == LearnedLimits()
    )
    fork.prepare_request(replace(GOAL, model="another"))
    assert told(fork) == (False, False)
    fork.prepare_request(GOAL)
    assert told(fork) == wanted
    fork.record_accepted_form()
    assert told(fork) == told(Journal.open(store, SAMPLE_KEY, leaf=fork.leaf)) == (False, False)
    assert ConversationState.load(journal.state.dump()).usage.learned_limits == journal.state.usage.learned_limits


def test_what_is_ready_goes_out_as_it_is():
    """A request that was refused and is sent once more, mended on its way, stays the one that was prepared."""
    journal = Journal.open(MemoryStore(), SAMPLE_KEY)
    journal.follow_conversation(SAID)
    prepared = journal.prepare_request(GOAL)
    journal.record_accepted_form(judges=True)
    assert journal.prepare_request(GOAL) is prepared
