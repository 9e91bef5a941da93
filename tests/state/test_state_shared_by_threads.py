"""A branch is a value: threads that go on from the same one, or look at it, never meet each other's words."""

from __future__ import annotations

import sys
from functools import partial
from itertools import count
from threading import Thread

import pytest

from holdfast import ConversationState
from holdfast.messages.message import Message
from holdfast.messages.parts import ToolCall
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.persistent_sequence import PersistentSequence


@pytest.mark.uncounted
@pytest.mark.parametrize(("mine", "theirs"), [("a", "b"), ("ab", "a"), ("a", "ab"), ("ab", "ac"), ("a", "a")])
def test_who_adds_has_their_own(mine, theirs, meanwhile):
    """Wherever another thread gets in, each has what it added, behind what both had, and so do those that go on."""
    for at in count(1):
        base = PersistentSequence("xy")
        made, others = meanwhile(partial(base.add, *mine), partial(base.add, *theirs), at)
        assert made.slice() == [*"xy", *mine]
        assert made.add("z").sum_from(ord) == sum(map(ord, f"xy{mine}z"))
        if not others:
            break
        assert others[0].slice() == [*"xy", *theirs]
        assert others[0].add("q").sum_from(ord) == sum(map(ord, f"xy{theirs}q"))
        assert base.slice() == [*"xy"]
    assert at > 3


def said(name):
    return Entry(name, None, MessageEntry(build_sized_message(Message("assistant", (ToolCall(name, "read", "{}"),)))))


LOOKS = {
    "go on": lambda branch: apply_entries(branch, [said("other")]),
    "dump": lambda branch: branch.dump(),
    "change": lambda branch: branch.history.sized_messages.replace_from(len(branch.history.sized_messages), []),
}


@pytest.mark.uncounted
@pytest.mark.parametrize("look", LOOKS)
def test_a_branch_that_another_thread_goes_on_from(look):
    """What is shared grows meanwhile: nobody sees a dictionary change under their hands."""
    before = ConversationState.from_entries(said(f"x{number}") for number in range(400))
    first = apply_entries(before, [said("first")])
    behind = [said(f"y{number}") for number in range(600)]
    wrong, interval = [], sys.getswitchinterval()

    def goes_on():
        branch = first
        for one in behind:
            branch = apply_entries(branch, [one])
            branch.history.sized_messages.sum_from(lambda slot: slot.tokens)

    def looks():
        try:
            while thread.is_alive():
                LOOKS[look](before)
        except RuntimeError as error:
            wrong.append(error)

    thread = Thread(target=goes_on)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        looks()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
