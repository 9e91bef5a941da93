"""Evidence windows and their agreement, with figures counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.message import Message
from holdfast.messages.references import extract_references
from holdfast.messages.size.tokens import build_sized_message
from holdfast.replay.evidence import TextIndex, find_windows, iter_excerpts, score_windows

NAME = ("id", "read_file")


def test_find_windows_returns_the_words_of_the_line() -> None:
    """A window is the set of words of the line: three letters or more, runs of digits, and each Chinese character."""
    text = "other line\nthe tool read_file opens 42 at 路径 or so\nanother read_files here"
    assert find_windows(text, NAME) == (frozenset({"the", "tool", "opens", "42", "路", "径"}),)


def test_find_windows_omits_the_reference_itself() -> None:
    """Words of the reference itself are not evidence for it."""
    assert find_windows("src/view/text.py holds the text of view", ("path", "view/text.py")) == (
        frozenset({"src", "holds", "the"}),
    )


def test_iter_excerpts_takes_120_characters_on_each_side() -> None:
    """Of a long line only the 120 characters before and after the reference count."""
    line = "early " + "x" * 115 + " read_file " + "y" * 115 + " late"
    assert list(iter_excerpts(line, NAME)) == ["rly " + "x" * 115 + " read_file " + "y" * 115 + " lat"]
    assert find_windows(line, NAME) == (frozenset({"rly", "x" * 115, "y" * 115, "lat"}),)


def test_find_windows_returns_one_window_per_occurrence() -> None:
    """Each line and each place in it counts, and equal windows count once."""
    far = "read_file first" + " " * 200 + "second read_file"
    assert find_windows(f"{far}\nfirst read_file", NAME) == (frozenset({"first"}), frozenset({"second"}))


def test_find_windows_ignores_longer_names() -> None:
    """A longer name that contains the reference is another reference."""
    assert find_windows("my_read_file_now is something else", NAME) == ()


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("open ./a/../view/text.py please", ("path", "view/text.py")),
        ("open view/./text.py please", ("path", "view/text.py")),
        ("open https://a.io/x). please", ("url", "https://a.io/x")),
        ("open 9f8e7d6c5b4a please", ("hex", "9f8e7d6")),
    ],
)
def test_find_windows_finds_references_in_other_forms(text: str, reference: tuple[str, str]) -> None:
    """A key that is not literally in the text is found where its reference is."""
    (window,) = find_windows(text, reference)
    assert {"open", "please"} <= window


def test_score_windows_is_the_share_of_common_words() -> None:
    """Two of four words score 0.5, four of at most eight counted words score 0.5, and no common word scores 0."""
    four, ten = frozenset("abcd"), frozenset("abcdefghij")
    assert score_windows([four], [frozenset("abxy")]) == 0.5
    assert score_windows([ten], [frozenset("abcd")]) == 0.5
    assert score_windows([four], [frozenset("xy")]) == 0.0
    assert score_windows([four], []) == 0.0


def test_score_windows_takes_the_best_pair() -> None:
    """The best of all pairs counts, and the score never exceeds 1."""
    source = [frozenset("abcd"), frozenset("wxyz")]
    assert score_windows(source, [frozenset("a"), frozenset("wxy")]) == 0.75
    assert score_windows([frozenset("abcdefghij")], [frozenset("abcdefghij")]) == 1.0


def test_score_windows_of_a_bare_mention_needs_only_the_name() -> None:
    """A window without words is kept wherever the name occurs, and only there."""
    assert score_windows([frozenset()], [frozenset("xyz")]) == 1.0
    assert score_windows([frozenset()], []) == 0.0


lines = st.lists(st.sampled_from(["read_file", "alpha", "beta", "gamma", "12", "my_name"]), max_size=6).map(" ".join)
texts = st.lists(lines, max_size=4).map("\n".join)


@given(texts, texts)
def test_text_index_scores_like_reading_the_texts(source: str, kept: str) -> None:
    """Cached look-ups give the same result as reading the texts, also for equal texts."""
    lookup = TextIndex()
    for reference in extract_references(source) | {NAME}:
        plain = score_windows(find_windows(source, reference), find_windows(kept, reference))
        for _ in range(2):
            assert (lookup.score_agreement(source, kept, reference) >= 0.5) == (plain >= 0.5)
            assert lookup.is_kept(reference, [source], [kept]) == (plain >= 0.5)


@given(texts)
def test_score_windows_of_a_text_with_itself_is_1(text: str) -> None:
    """Every reference of a text is kept as a fact by the text itself."""
    for reference in extract_references(text):
        assert score_windows(find_windows(text, reference), find_windows(text, reference)) == 1.0


def test_get_texts_returns_the_texts_of_the_message() -> None:
    """The texts of a sized message are those of its message."""
    slot = build_sized_message(Message.from_text("user", "see a_name"))
    lookup = TextIndex()
    assert lookup.get_texts(slot) == lookup.get_texts(slot) == ("see a_name",)
