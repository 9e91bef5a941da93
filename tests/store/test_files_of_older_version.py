"""A store and a dumped state that the code wrote before its fields were renamed (commit 817d23a)."""

import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_entries import is_same_request, make_all_entry_bodies, make_message_chain

from holdfast.state.conversation_state import ConversationState
from holdfast.state.view import build_projection, compute_prefix_digest
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store

OLD_FILES = Path(__file__).parent / "older_version"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """Return the old store, copied to a temporary path."""
    path = tmp_path / "store.db"
    path.write_bytes(lzma.decompress((OLD_FILES / "store-817d23a.db.xz").read_bytes()))
    with open_store(path) as opened:
        yield opened


def test_old_store_reads_every_kind_of_entry(store):
    """Entries written as JSON with the former field names read as the values that were written."""
    assert [entry.body for entry in store.read_entries("every-kind")] == make_all_entry_bodies()


def test_old_store_opens_to_the_same_state(store):
    """A checkpoint of an older fold is folded again and shows the same messages."""
    state = store.open_state("long")
    shown = [(slot.message.role, slot.message.text) for slot in build_projection(state)]
    assert shown == [
        ("system", "Be brief."),
        ("user", "second"),
        ("assistant", "answer 8"),
        ("tool", ""),
        ("assistant", "answer 10"),
        ("tool", ""),
    ]
    assert compute_prefix_digest(state) == "ffbae60902004e497db3dc732b4ef87c"
    assert (state.view.shown_tokens, state.counters.requests_since_break, state.last_request.seen_count) == (848, 1, 10)


def test_old_store_accepts_new_entries(store, tmp_path):
    """New entries follow the old ones, also after the file is opened again."""
    leaf = store.get_session("long").leaf_id
    store.append_entries("long", make_message_chain(["new"], leaf))
    store.close()
    with open_store(tmp_path / "store.db") as again:
        state = again.open_state("long")
        assert build_projection(state)[-1].message.text == "text of new"
        assert is_same_request(state, ConversationState.from_entries(again.read_path("long")))


def test_old_state_dump_loads_to_the_same_state(store):
    """A dumped state is a row in a user's own database, so it stays readable forever."""
    loaded = ConversationState.load(lzma.decompress((OLD_FILES / "state-817d23a.dump.xz").read_bytes()))
    assert is_same_request(loaded, ConversationState.from_entries(store.read_path("long")))
    assert is_same_request(ConversationState.load(loaded.dump()), loaded)
