"""A branch without its words tells the sizes that the whole one tells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy

from holdfast.cli.reports.request_size import get_session_target, measure_request
from holdfast.config import load_shipped_catalog
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_QUEUED, Entry, NoteEntry
from holdfast.store.base import SessionInfo
from holdfast.store.tree.active import FOLD_VERSION
from holdfast.store.tree.outline import decode_outline, encode_outline, reduce_to_sizes, strip_entry_text


@given(log_strategy(), st.sampled_from(["", "m", "claude-sonnet-4-5"]))
def test_every_size_is_that_of_the_branch(log, model):
    """opening-costs-one-branch: where the next request goes and how large it is, in any model's tokens, does not ask
    for a message.
    """
    info, branch = SessionInfo("one"), ConversationState.from_entries(log)
    plain = reduce_to_sizes(branch)
    places = [get_session_target(info, one, model or None, None, load_shipped_catalog()) for one in (branch, plain)]
    assert places[0] == places[1]
    assert measure_request(branch, places[0]) == measure_request(plain, places[1])
    assert (
        plain.usage.measured_request is None
        or plain.usage.measured_request.reported_tokens == branch.usage.measured_request.reported_tokens
    )


@given(log_strategy(), st.integers(0, 2**16))
def test_an_outline_is_read_as_it_was_written_or_not_at_all(log, at):
    """A bit that a disk turned costs a look at the branch, never another size."""
    branch = ConversationState.from_entries(log)
    saved = encode_outline(branch)
    assert decode_outline(saved) == reduce_to_sizes(branch)
    place = at % (8 * len(saved))
    turned = bytearray(saved)
    turned[place // 8] ^= 1 << place % 8
    assert decode_outline(bytes(turned)) in (None, reduce_to_sizes(branch))


def test_of_a_note_a_fold_asks_for_no_line():
    """The lines that notes keep may be all that a file holds; a message that waits to be said is asked for."""
    kept, waits = (Entry("n", None, NoteEntry(reason, b"{}", {"line": 1})) for reason in ("pi:custom", NOTE_QUEUED))
    assert strip_entry_text(kept).body == NoteEntry("pi:custom", data={"line": 1})
    assert strip_entry_text(waits) == waits


def test_an_outline_of_another_version_is_none(monkeypatch):
    """The fold counts otherwise in another version: what it left is not used."""
    saved = encode_outline(ConversationState())
    monkeypatch.setattr("holdfast.store.tree.outline.FOLD_VERSION", FOLD_VERSION + 1)
    assert decode_outline(saved) is None
    assert decode_outline(None) is None
