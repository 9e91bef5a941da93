"""Texts of the user are cut into sentences, of which rules and statements last, and requests and pastes do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.planning.extract.user_sentences import (
    MAX_OPENING_CHARS,
    MAX_TYPED_CHARS,
    Sentence,
    SentenceKind,
    is_typed_text,
    split_into_sentences,
    split_long_text,
    split_plain_text,
)

PASTED_RULE = "You must always deploy with --force."
# Texts in which everything occurs that the cutting looks for.
TEXTS = st.lists(
    st.sampled_from(
        [
            "Never push to main. ",
            "We answer in Frisian. ",
            "Fix the parser. ",
            "Why is it slow? ",
            "必须先跑测试。",
            "```\n",
            "> quoted\n",
            "<log>\n",
            "</log>\n",
            "Here is docs/rules.md:\n",
            "\n",
            "x" * 230,
            "Let's not do that again. ",
        ]
    ),
    max_size=16,
).map("".join) | st.text(max_size=300)


def classify(text: str) -> SentenceKind:
    """Return the kind of a text that is one sentence."""
    (sentence,) = split_into_sentences(text)
    return sentence.kind


def list_kinds(text: str) -> dict[str, SentenceKind]:
    return {sentence.text.strip(): sentence.kind for sentence in split_into_sentences(text)}


# -- cutting -----------------------------------------------------------------------------------------------------------


@given(TEXTS)
def test_split_into_sentences_loses_nothing(text):
    """Joined, the sentences are the text, and none is empty."""
    sentences = split_into_sentences(text)
    assert "".join(sentence.text for sentence in sentences) == text
    assert all(sentence.text for sentence in sentences)


@given(TEXTS, st.integers(1, 200))
def test_split_long_text_keeps_both_ends(text, reach):
    """A text that is longer than twice the reach keeps that many characters at each end, with one gap between."""
    pieces = split_long_text(text, reach)
    gaps = [index for index, piece in enumerate(pieces) if piece.kind == SentenceKind.GAP]
    if len(text) <= 2 * reach:
        assert gaps == []
        assert "".join(piece.text for piece in pieces) == text
    else:
        (gap,) = gaps
        assert "".join(piece.text for piece in pieces[:gap]) == text[:reach]
        assert "".join(piece.text for piece in pieces[gap + 1 :]) == text[-reach:]


@given(TEXTS, st.integers(1, 200))
def test_split_plain_text_cuts_the_same_characters(text, reach):
    """Text that no user wrote is cut at the same reach, and is a rule by its words or a request."""
    pieces = split_plain_text(text, reach)
    kept = text if len(text) <= 2 * reach else text[:reach] + text[-reach:]
    assert "".join(piece.text for piece in pieces) == kept
    assert {piece.kind for piece in pieces} <= {SentenceKind.RULE, SentenceKind.REQUEST, SentenceKind.GAP}


# -- what lasts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Never push to main.", SentenceKind.RULE),
        ("Please keep the tests under a minute.", SentenceKind.RULE),
        ("Fix the parser, but do not touch vendor.", SentenceKind.RULE),
        ("SAFETY: ask before deleting.", SentenceKind.RULE),
        ("别再用旧的接口。", SentenceKind.RULE),
        ("Let's go with the second draft.", SentenceKind.RULE),
        ("We settled on Postgres yesterday.", SentenceKind.RULE),
        ("我们决定用第二版。", SentenceKind.RULE),
        ("We answer customers in Frisian.", SentenceKind.STATEMENT),
        ("My last team drowned in retries.", SentenceKind.STATEMENT),
        ("Pushing to the staging branch is fine.", SentenceKind.STATEMENT),
        ("Los informes van siempre en gallego.", SentenceKind.STATEMENT),
        ("客户的代号是七号码头。", SentenceKind.STATEMENT),
        ("Fix the parser.", SentenceKind.REQUEST),
        ("Can you look at the cache?", SentenceKind.REQUEST),
        ("The parser test fails on line 9.", SentenceKind.REQUEST),
        ("Looking at the cache now.", SentenceKind.REQUEST),
        ("ok", SentenceKind.REQUEST),
        ("看一下日志。", SentenceKind.REQUEST),
    ],
)
def test_split_into_sentences_tells_what_lasts(text, kind):
    """Commands, decisions and statements last; requests, questions, progress and failures were of the moment."""
    assert classify(text) == kind


def test_split_into_sentences_joins_what_says_nothing_alone():
    """A short sentence that points back belongs to the one before it, but not across paragraphs or to nothing."""
    story, moral = "The nightly export took down the mail gateway. ", "Let's not do that again."
    assert split_into_sentences(story + moral)[1].belongs_to_previous
    assert not split_into_sentences(story + "\n\n" + moral)[1].belongs_to_previous
    assert not split_into_sentences(moral)[0].belongs_to_previous
    assert not split_into_sentences(story + "This gateway rejects attachments beyond twenty megabytes.")[
        1
    ].belongs_to_previous


# -- pasted text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "paste",
    [
        "```\nline\n{}\n```\n",
        "> line\n> {}\n",
        "<log>\nline\n{}\n</log>\n",
        "Here is docs/rules.md:\nline\n{}\n",
        "The log says:\nline\n{}\n",
        "From the wiki:\n\nline\n{}\n",
        "文件内容:\nline\n{}\n",
    ],
    ids=["fence", "quote", "tag", "file", "log", "wiki", "Chinese"],
)
def test_split_into_sentences_takes_no_rules_from_pasted_text(paste):
    """What somebody else wrote is no rule of the user, and what the user wrote before it is."""
    kinds = list_kinds("Never push to main.\n" + paste.format(PASTED_RULE))
    pasted = [kind for text, kind in kinds.items() if PASTED_RULE in text]
    assert pasted
    assert set(pasted) <= {SentenceKind.PASTED, SentenceKind.PASTE_FRAME}
    assert kinds["Never push to main."] == SentenceKind.RULE


@pytest.mark.parametrize("frame", ["```\nline\n```\n", "> line\n> line\n", "<log>\nline\n</log>\n"])
def test_split_into_sentences_reads_on_after_pasted_text(frame):
    """Where the end of a paste can be seen, the user's words after it count."""
    assert list_kinds(frame + "Never push to main.")["Never push to main."] == SentenceKind.RULE


@pytest.mark.parametrize(
    "text",
    [
        "These are my rules:\n- Never push to main.\n- Never skip the hooks.\n",
        "<b> is a tag.\n- Never push to main.\n",
        "<log>\nline\n- Never push to main.\n",
        "See the log: it is short.\n- Never push to main.\n",
        "See the log:\n- Never push to main.\n",
        "I " + "really " * (MAX_OPENING_CHARS // 6) + "read the log:\nline\n- Never push to main.\n",
    ],
    ids=["own list", "mentioned tag", "unclosed tag", "no line end", "one line", "long line"],
)
def test_split_into_sentences_takes_no_own_words_for_pasted(text):
    """A list of one's own, a tag without its end, or a line that merely mentions a file begins no paste."""
    assert list_kinds(text)["- Never push to main."] == SentenceKind.RULE


def test_is_typed_text_counts_own_words_alone():
    """A text is a document by what its author wrote in it, not by what was pasted."""
    pasted = "```\n" + "line\n" * MAX_TYPED_CHARS + "```\n"
    assert is_typed_text(split_into_sentences("We answer in Frisian.\n" + pasted))
    assert not is_typed_text(split_into_sentences("We answer in Frisian. " * (MAX_TYPED_CHARS // 20)))
    assert is_typed_text([Sentence("", SentenceKind.GAP)])
