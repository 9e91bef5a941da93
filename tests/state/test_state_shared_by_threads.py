"""A state is a value: threads that extend or read the same one never see each other's messages."""

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
def test_persistent_sequence_add_is_thread_safe(mine, theirs, run_interleaved):
    """Wherever another thread adds in between, each result holds its own items behind the shared ones, and so do later
    versions.
    """
    for at in count(1):
        base = PersistentSequence("xy")
        result, others = run_interleaved(partial(base.add, *mine), partial(base.add, *theirs), at)
        assert result.slice() == [*"xy", *mine]
        assert result.add("z").sum_from(ord) == sum(map(ord, f"xy{mine}z"))
        if not others:
            break
        assert others[0].slice() == [*"xy", *theirs]
        assert others[0].add("q").sum_from(ord) == sum(map(ord, f"xy{theirs}q"))
        assert base.slice() == [*"xy"]
    assert at > 3


def build_call_entry(name):
    return Entry(name, None, MessageEntry(build_sized_message(Message("assistant", (ToolCall(name, "read", "{}"),)))))


READERS = {
    "go on": lambda state: apply_entries(state, [build_call_entry("other")]),
    "dump": lambda state: state.dump(),
    "change": lambda state: state.history.sized_messages.replace_from(len(state.history.sized_messages), []),
}


@pytest.mark.uncounted
@pytest.mark.parametrize("reader", READERS)
def test_state_is_readable_while_another_thread_extends_it(reader):
    """Storage that is shared grows meanwhile; no reader sees a dictionary change during its iteration."""
    before = ConversationState.from_entries(build_call_entry(f"x{number}") for number in range(400))
    first = apply_entries(before, [build_call_entry("first")])
    behind = [build_call_entry(f"y{number}") for number in range(600)]
    wrong, interval = [], sys.getswitchinterval()

    def extend_state():
        state = first
        for entry in behind:
            state = apply_entries(state, [entry])
            state.history.sized_messages.sum_from(lambda message: message.tokens)

    def read_while_alive():
        try:
            while thread.is_alive():
                READERS[reader](before)
        except RuntimeError as error:
            wrong.append(error)

    thread = Thread(target=extend_state)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        read_while_alive()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
