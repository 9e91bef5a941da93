"""The request form that a server accepts is recorded with its refusal and applies wherever the session continues."""

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

TARGET = get_target("openai-chat", "local-7b")
MESSAGES = [build_sized_message(Message.from_text(role, role)) for role in ("user", "assistant", "user")]


def get_learned_form(journal):
    """Return the two learned flags: whether the strict form is required, and whether a check is."""
    return (
        journal.state.usage.learned_limits.requires_strict_form,
        journal.state.usage.learned_limits.requires_check,
    )


@pytest.mark.parametrize("form", [(True, False), (False, True), (True, True)])
def test_record_accepted_form_applies_after_restarts_forks_and_other_windows(form):
    """same-after-restart: the form applies after a restart, on forks and under other windows, until it is reset.

    Another model of the same session has its own form.
    """
    store = MemoryStore()
    journal = Journal.open(store, SAMPLE_KEY)
    journal.follow_conversation(MESSAGES)
    journal.prepare_request(TARGET)
    journal.record_accepted_form(requires_strict_form=form[0], requires_check=form[1])
    entries = store.get_session(SAMPLE_KEY).entry_count
    journal.record_accepted_form(requires_strict_form=form[0], requires_check=form[1])
    assert store.get_session(SAMPLE_KEY).entry_count == entries
    assert get_learned_form(journal) == get_learned_form(Journal.open(store, SAMPLE_KEY)) == form
    fork = Journal.open(store, SAMPLE_KEY)
    fork.follow_conversation([*MESSAGES[:2], build_sized_message(Message.from_text("user", "else"))])
    assert get_learned_form(fork) == get_learned_form(Journal.open(store, SAMPLE_KEY, leaf=fork.leaf)) == form
    fork.prepare_request(replace(TARGET, limits=replace(TARGET.limits, window=50_000)))
    fork.record_overflow("too large", 40_000)
    fork.forget_learned_window()
    assert get_learned_form(fork) == form
    assert replace(fork.state.usage.learned_limits, requires_strict_form=False, requires_check=False) == LearnedLimits()
    fork.prepare_request(replace(TARGET, model="another"))
    assert get_learned_form(fork) == (False, False)
    fork.prepare_request(TARGET)
    assert get_learned_form(fork) == form
    fork.record_accepted_form()
    assert get_learned_form(fork) == get_learned_form(Journal.open(store, SAMPLE_KEY, leaf=fork.leaf)) == (False, False)
    assert ConversationState.load(journal.state.dump()).usage.learned_limits == journal.state.usage.learned_limits


def test_record_accepted_form_keeps_the_prepared_request():
    """A refused request that is sent again in another form stays the prepared request."""
    journal = Journal.open(MemoryStore(), SAMPLE_KEY)
    journal.follow_conversation(MESSAGES)
    prepared = journal.prepare_request(TARGET)
    journal.record_accepted_form(requires_check=True)
    assert journal.prepare_request(TARGET) is prepared
