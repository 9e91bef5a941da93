"""A branch reduced to its sizes gives the same sizes as the whole branch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import log_strategy

from holdfast.config import load_shipped_catalog
from holdfast.reports.requests.request_size import get_session_target, measure_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_QUEUED, Entry, NoteEntry
from holdfast.store.base import SessionInfo
from holdfast.store.tree.active import FOLD_VERSION
from holdfast.store.tree.outline import decode_outline, encode_outline, reduce_to_sizes, strip_entry_text


@given(log_strategy(), st.sampled_from(["", "m", "claude-sonnet-4-5"]))
def test_reduce_to_sizes_keeps_target_and_request_size(log, model):
    """opening-costs-one-branch: the next request's target and size in any model's tokens are known without its
    messages.
    """
    info, branch = SessionInfo("one"), ConversationState.from_entries(log)
    sizes = reduce_to_sizes(branch)
    targets = [
        get_session_target(info, state, model or None, None, load_shipped_catalog()) for state in (branch, sizes)
    ]
    assert targets[0] == targets[1]
    assert measure_request(branch, targets[0]) == measure_request(sizes, targets[1])
    assert (
        sizes.usage.measured_request is None
        or sizes.usage.measured_request.reported_tokens == branch.usage.measured_request.reported_tokens
    )


@given(log_strategy(), st.integers(0, 2**16))
def test_decode_outline_rejects_flipped_bits(log, at):
    """A flipped bit costs a look at the branch and never gives another size."""
    branch = ConversationState.from_entries(log)
    saved = encode_outline(branch)
    assert decode_outline(saved) == reduce_to_sizes(branch)
    bit = at % (8 * len(saved))
    flipped = bytearray(saved)
    flipped[bit // 8] ^= 1 << bit % 8
    assert decode_outline(bytes(flipped)) in (None, reduce_to_sizes(branch))


def test_strip_entry_text_drops_note_lines_but_keeps_queued_messages():
    """The raw lines of notes may be most of a file and are dropped; a queued message is kept."""
    note, queued = (Entry("n", None, NoteEntry(reason, b"{}", {"line": 1})) for reason in ("pi:custom", NOTE_QUEUED))
    assert strip_entry_text(note).body == NoteEntry("pi:custom", data={"line": 1})
    assert strip_entry_text(queued) == queued


def test_decode_outline_rejects_another_fold_version(monkeypatch):
    """Another version of the fold counts differently, so its outline is not used."""
    saved = encode_outline(ConversationState())
    monkeypatch.setattr("holdfast.store.tree.outline.FOLD_VERSION", FOLD_VERSION + 1)
    assert decode_outline(saved) is None
    assert decode_outline(None) is None
