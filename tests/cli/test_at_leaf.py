"""What a person decides about a session, while a proxy or an agent goes on with it."""

from __future__ import annotations

import pytest
from samples import KEY

from holdfast.cli.commands.compact import compacted
from holdfast.cli.commands.undo import undo
from holdfast.cli.reports.history import read_log
from holdfast.cli.reports.next_plan import recorded
from holdfast.config import target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.planning.pipeline import Policy
from holdfast.state.entries import Entry, Said
from holdfast.state.target import World
from holdfast.store.memory import MemoryStore
from holdfast.store.tree.tree import new_id

PLACE, FORCED = target("anthropic", "claude-opus-5-5", window=32_000), World(force=True)


class Busy(MemoryStore):
    """A store in which somebody says something just before a session is held for the second time."""

    held = -100

    def writing(self, key):
        """Hold the session's lease, behind what another one says."""
        self.held += 1
        if self.held == 2:
            words = Said(measure(Message.of("user", "And the kelp?")))
            self.append(key, [Entry(new_id(), self.session(key).leaf, words)])
        return super().writing(key)


@pytest.mark.parametrize(
    "decide",
    [
        lambda store: compacted(store, KEY, Policy(), PLACE, FORCED).entry,
        lambda store: recorded(store, KEY, read_log(store, KEY), PLACE, Policy(), FORCED)[0].recorded[-1],
        lambda store: undo(store, store.session(KEY)).revoked.id,
    ],
    ids=["compact", "context --record", "undo"],
)
def test_it_holds_where_the_session_goes_on(decide):
    """What is said meanwhile stands before the decision, which is on its branch: none is made beside it."""
    store = Busy()
    journal = Journal.open(store, KEY)
    journal.append(*(Message.of(role, f"{at} " + "kelp " * 900) for at in range(9) for role in ("user", "assistant")))
    first = compacted(store, KEY, Policy(), PLACE, FORCED).entry
    store.held = 0
    decided = decide(store)
    path = store.path(KEY, store.session(KEY).leaf)
    assert store.held >= 2
    assert any(isinstance(entry.body, Said) and entry.body.slot.message.text == "And the kelp?" for entry in path)
    in_force = {id_ for id_, _ in store.branch(KEY).law}
    assert (decided in in_force) == (decided != first), "undone, or in force"
