"""Find the statements of excess in an error: which thing is said to be too large, in any of thirteen languages.

A statement has a subject ("input"), a relation ("exceeds", "too long", "has reached the limit") and sometimes a unit.
Lists of whole sentences miss the next sentence, and lists of single words have false alarms, because "the image in the
conversation exceeds the limit" has all the words of an overflow. What tells them apart is the grammatical head: the
image is too large here, and the conversation only says where it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal, TypeAlias, cast

from msgspec import Struct

from holdfast.providers.errors import excess_words as words

Subject: TypeAlias = Literal["prompt", "message", "media", "output", "item", "parameter", "rate", "neutral"]
Relation: TypeAlias = Literal["too_large", "too_many", "not_fitting", "exceeding", "reaching"]

_MARKS = re.compile("[\u0300-\u036f]")
_PLAIN_LETTERS = str.maketrans({"đ": "d", "ł": "l", "ı": "i", "ß": "ss", "ø": "o", "_": " "})
_BRACKETS = re.compile(r"\(([^()]{0,160})\)")
_SENTENCE_END = re.compile(r"[!?;。\n]|\.(?=\s|$)")
_CLAUSE_END = re.compile(r"[:,](?!\d)|、| [-\u2013\u2014]+ ")
# "messages.0.content.1.image" and "prompt image" are one noun each, of which the last word says what it is.
_COMPOUND_GAP = re.compile(r"[ \-./\[\]\d]{1,12}")
_PREPOSITION = re.compile(r"\b(?:for|in|of|per)\b")
_MAX_TEXT = 20_000
_MAX_CLAUSES = 200
"""Clauses that are read; the longest error seen has forty."""


class ExcessStatement(Struct, frozen=True):
    """Something that is said to be too large."""

    subject: Subject
    has_length: bool
    """Whether a unit or a word of length stands in the statement."""
    has_tokens: bool
    has_bytes: bool
    is_single_message: bool
    """Whether it is about one message of the conversation."""

    @property
    def is_about_conversation(self) -> bool:
        """Whether sending less text cures it."""
        return self.subject in {"prompt", "message"}


class _Noun(Struct, frozen=True):
    subject: Subject
    start: int
    end: int


_SINGLE_MESSAGE = re.compile(r"\b(?:one|single|per|each|a) message\b|单条|每条|单个消息")


def find_excess_statements(plain_text: str) -> list[ExcessStatement]:
    """Find all statements of excess in a text that is normalized as ``ErrorFacts.plain_text``."""
    statements: list[ExcessStatement] = []
    for sentence in _split_sentences(_strip_accents(plain_text[:_MAX_TEXT])):
        carried: _Noun | None = None
        for clause in _CLAUSE_END.split(sentence)[:_MAX_CLAUSES]:
            nouns = _find_nouns(clause)
            statement = _read_clause(clause, nouns, carried)
            if statement is not None:
                statements.append(statement)
            if nouns and nouns[0].subject != "message":
                # "the input has 300 tokens, exceeding …" names its subject one clause earlier. ("message:" is often
                # the name of a field.)
                carried = nouns[0]
    return statements


def _strip_accents(text: str) -> str:
    """Remove the accents of Latin and Cyrillic letters; Japanese and Korean stay as they are."""
    decomposed = _MARKS.sub("", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", decomposed).translate(_PLAIN_LETTERS)


def _split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of ``text``, and what stands in brackets as sentences of its own."""
    yield from _BRACKETS.findall(text)
    yield from _SENTENCE_END.split(_BRACKETS.sub(" ", text))


def _find_nouns(clause: str) -> list[_Noun]:
    """List the nouns of a clause; a compound ("prompt image") is one, and has the meaning of its last word."""
    nouns: list[_Noun] = []
    for match in words.SUBJECT.finditer(clause):
        noun = _Noun(cast("Subject", match.lastgroup), match.start(), match.end())
        if nouns and _COMPOUND_GAP.fullmatch(clause, nouns[-1].end, noun.start):
            previous = nouns.pop()
            # "response content" and "file text" say no more than "response" and "file".
            is_light = noun.subject == "message" or words.HEAD_INITIAL.match(clause, previous.start)
            subject = previous.subject if is_light else noun.subject
            noun = _Noun(subject, previous.start, noun.end)
        nouns.append(noun)
    return [noun for noun in nouns if noun.subject != "neutral"]


def _read_clause(clause: str, nouns: list[_Noun], carried: _Noun | None) -> ExcessStatement | None:
    """Read the statement of excess in a clause, or return None if it has none."""
    if words.CONDITION.search(clause):
        return None
    match = _find_relation(clause)
    if match is None:
        return None
    relation = cast("Relation", match.lastgroup)
    subject = _choose_subject(clause, nouns, carried, match)
    if subject in {"prompt", "message"} and any(noun.subject == "rate" for noun in nouns):
        # A minute, an account or a plan: whatever is counted, the limit is theirs.
        subject = "rate"
    has_length = words.LENGTH.search(clause) is not None
    is_count = relation == "too_many" and subject in {"prompt", "message", None}
    if is_count and words.COUNT_UNIT.search(clause) is None:
        # "too many requests" and "too many messages" are limits of another kind.
        return None
    if subject is None and relation == "too_many" and words.TOKEN_UNIT.search(clause):
        # "too many tokens"; a limit of tokens may be one of a minute or of an answer.
        subject = "prompt"
    if subject is None:
        return None
    if subject == "message" and relation != "too_large" and not has_length:
        return None
    return ExcessStatement(
        subject=subject,
        has_length=has_length,
        has_tokens=words.TOKEN_UNIT.search(clause) is not None,
        has_bytes=words.BYTE_UNIT.search(clause) is not None,
        is_single_message=_SINGLE_MESSAGE.search(clause) is not None,
    )


def _find_relation(clause: str) -> re.Match[str] | None:
    """Find the first relation of excess that is not denied, or return None."""
    for match in words.RELATION.finditer(clause):
        if match.lastgroup == "reaching" and words.LIMIT.search(clause) is None:
            continue
        if words.NEGATION.search(clause[max(0, match.start() - 20) : match.start()]):
            continue
        return match
    return None


def _choose_subject(clause: str, nouns: list[_Noun], carried: _Noun | None, relation: re.Match[str]) -> Subject | None:
    """Choose the noun that the relation is about: the head before it, else what stands behind it."""
    before = [noun for noun in nouns if noun.start < relation.start()]
    behind = [noun for noun in nouns if noun.start >= relation.end()]
    if not before and not behind:
        return carried.subject if carried is not None else None
    if not before:
        return _choose_head(clause, behind)
    head = _choose_head(clause, before)
    names_object = relation.lastgroup in {"exceeding", "reaching", "too_many"}
    if head in {"prompt", "message"} and names_object and behind and behind[0].subject not in {"prompt", "message"}:
        # "your request exceeds the maximum number of tools"
        return behind[0].subject
    names_context = relation.lastgroup == "exceeding" and bool(behind) and behind[0].subject == "prompt"
    if head == "media" and names_context and not _PREPOSITION.search(clause, relation.end(), behind[0].start):
        # "the file exceeds the context window"; "the limit for this conversation" is not the conversation's
        return "prompt"
    return head


def _choose_head(clause: str, nouns: list[_Noun]) -> Subject:
    """Choose the head among nouns that belong together: the first, or in some languages any but the owner."""
    first = nouns[0]
    for noun in nouns[1:]:
        names_sum = {first.subject, noun.subject} in ({"prompt", "output"}, {"message", "output"})
        if names_sum and words.JOINED.search(clause, first.end, noun.start):
            return "prompt"
    if words.HEAD_FINAL.search(clause):
        for noun in nouns:
            if noun.subject not in {"prompt", "message"}:
                return noun.subject
        return "prompt" if any(noun.subject == "prompt" for noun in nouns) else "message"
    return first.subject
