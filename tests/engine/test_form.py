"""Which form a server wants: written down beside its refusal, and true wherever the conversation goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from samples import KEY

from holdfast.config import target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.state.branch.branch import Branch
from holdfast.state.calibration.calibration import Learned
from holdfast.store.memory import MemoryStore

GOAL = target("openai-chat", "local-7b")
SAID = [measure(Message.of(role, role)) for role in ("user", "assistant", "user")]


def told(journal):
    """Return what ``journal`` knows of the form."""
    return journal.branch.learned.mends, journal.branch.learned.judges


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_the_form_that_a_server_wants_is_known_wherever_its_model_is_asked(wanted):
    """K2: it is so after a restart and on a fork, whatever window is configured or forgotten, until it is taken back.

    Another model of the same session wants what it wants.
    """
    store = MemoryStore()
    journal = Journal.open(store, KEY)
    journal.follow(SAID)
    journal.prepare(GOAL)
    journal.form(mends=wanted[0], judges=wanted[1])
    entries = store.session(KEY).entries
    journal.form(mends=wanted[0], judges=wanted[1])
    assert store.session(KEY).entries == entries
    assert told(journal) == told(Journal.open(store, KEY)) == wanted
    fork = Journal.open(store, KEY)
    fork.follow([*SAID[:2], measure(Message.of("user", "else"))])
    assert told(fork) == told(Journal.open(store, KEY, leaf=fork.leaf)) == wanted
    fork.prepare(replace(GOAL, limits=replace(GOAL.limits, window=50_000)))
    fork.learn("too large", 40_000)
    fork.forget()
    assert told(fork) == wanted
    assert replace(fork.branch.learned, mends=False, judges=False) == Learned()
    fork.prepare(replace(GOAL, model="another"))
    assert told(fork) == (False, False)
    fork.prepare(GOAL)
    assert told(fork) == wanted
    fork.form()
    assert told(fork) == told(Journal.open(store, KEY, leaf=fork.leaf)) == (False, False)
    assert Branch.load(journal.branch.dump()).learned == journal.branch.learned


def test_what_is_ready_goes_out_as_it_is():
    """A request that was refused and is sent once more, mended on its way, stays the one that was prepared."""
    journal = Journal.open(MemoryStore(), KEY)
    journal.follow(SAID)
    prepared = journal.prepare(GOAL)
    journal.form(judges=True)
    assert journal.prepare(GOAL) is prepared
