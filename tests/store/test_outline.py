"""A branch without its words tells the sizes that the whole one tells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from strategies import logs

from holdfast.cli.reports.request_size import measured, target_of
from holdfast.config import shipped
from holdfast.state.branch.branch import Branch
from holdfast.state.entries import QUEUED, Entry, Note
from holdfast.store.base import SessionInfo
from holdfast.store.tree.active import FOLD
from holdfast.store.tree.outline import bare, drawn, outlined, without_words


@given(logs(), st.sampled_from(["", "m", "claude-sonnet-4-5"]))
def test_every_size_is_that_of_the_branch(log, model):
    """S12: where the next request goes and how large it is, in any model's tokens, does not ask for a message."""
    info, branch = SessionInfo("one"), Branch.build(log)
    plain = bare(branch)
    places = [target_of(info, one, model or None, None, shipped()) for one in (branch, plain)]
    assert places[0] == places[1]
    assert measured(branch, places[0]) == measured(plain, places[1])
    assert plain.measured is None or plain.measured.tokens == branch.measured.tokens


@given(logs(), st.integers(0, 2**16))
def test_an_outline_is_read_as_it_was_written_or_not_at_all(log, at):
    """A bit that a disk turned costs a look at the branch, never another size."""
    branch = Branch.build(log)
    saved = outlined(branch)
    assert drawn(saved) == bare(branch)
    place = at % (8 * len(saved))
    turned = bytearray(saved)
    turned[place // 8] ^= 1 << place % 8
    assert drawn(bytes(turned)) in (None, bare(branch))


def test_of_a_note_a_fold_asks_for_no_line():
    """The lines that notes keep may be all that a file holds; a message that waits to be said is asked for."""
    kept, waits = (Entry("n", None, Note(reason, b"{}", {"line": 1})) for reason in ("pi:custom", QUEUED))
    assert without_words(kept).body == Note("pi:custom", data={"line": 1})
    assert without_words(waits) == waits


def test_an_outline_of_another_version_is_none(monkeypatch):
    """The fold counts otherwise in another version: what it left is not used."""
    saved = outlined(Branch())
    monkeypatch.setattr("holdfast.store.tree.outline.FOLD", FOLD + 1)
    assert drawn(saved) is None
    assert drawn(None) is None
