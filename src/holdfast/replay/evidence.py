"""Evidence: whether a context keeps not only the name of a thing, but what was said about it.

An *evidence window* of a reference is the set of words on the line around it, at most 120 characters to each side,
without the reference itself. A reference is kept as a fact if some window of it in the context has at least half of the
words (of eight, if there are more) of some window of it in the history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.messages.references import Reference, extract_references, extract_word_references, iter_reference_texts
from holdfast.messages.sized_message import SizedMessage

WINDOW_SIDE = 120
"""Characters of the line that count on each side of a reference (docs/metrics.md, ``fact_recall``)."""
MAX_WINDOW_WORDS = 8
"""Number of words from which a window counts as complete (docs/metrics.md, ``fact_recall``)."""
KEPT_SCORE = 0.5
"""Score from which a reference counts as kept (docs/metrics.md, ``fact_recall``)."""

_EVIDENCE_WORD = re.compile(r"[A-Za-z_]{3,}|\d+|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Words of at least three letters, runs of digits, and single Chinese, Japanese or Korean characters."""
_NON_SPACE = re.compile(r"\S+")

EvidenceWindow = frozenset[str]
"""The words around one occurrence of a reference."""


def iter_excerpts(text: str, reference: Reference) -> Iterator[str]:
    """Yield the line around each occurrence of ``reference`` in ``text``, at most 120 characters to each side."""
    needle = _get_literal(reference)
    position = text.find(needle)
    while position >= 0:
        line_start = text.rfind("\n", 0, position) + 1
        line_end = text.find("\n", position)
        if line_end < 0:
            line_end = len(text)
        yield from _iterate_line_excerpts(text[line_start:line_end], reference, needle)
        position = text.find(needle, line_end)


def _get_literal(reference: Reference) -> str:
    """Return a string that every occurrence of the reference contains: the last name of a path, else the key."""
    kind, key = reference
    return key.rsplit("/", 1)[-1] if kind == "path" else key


def _iterate_line_excerpts(line: str, reference: Reference, needle: str) -> Iterator[str]:
    for piece in _NON_SPACE.finditer(line):
        word = piece.group()
        if needle not in word or reference not in extract_word_references(word):
            continue
        key = reference[1] if reference[1] in word else needle
        offset = word.find(key)
        while offset >= 0:
            start = piece.start() + offset
            yield line[max(0, start - WINDOW_SIDE) : start + len(key) + WINDOW_SIDE]
            offset = word.find(key, offset + len(key))


def find_windows(text: str, reference: Reference) -> tuple[EvidenceWindow, ...]:
    """Return the distinct evidence windows of ``reference`` in ``text``, in order."""
    own_words = frozenset(_EVIDENCE_WORD.findall(reference[1]))
    # A dict, because a set has no order.
    windows: dict[EvidenceWindow, None] = {}
    for excerpt in iter_excerpts(text, reference):
        words = frozenset(_EVIDENCE_WORD.findall(excerpt))
        windows[words - own_words] = None
    return tuple(windows)


def score_windows(history: Iterable[EvidenceWindow], context: Iterable[EvidenceWindow]) -> float:
    """Return the best agreement, from 0 to 1, of a window of the context with one of the history."""
    context_windows = tuple(context)
    best = 0.0
    for history_window in history:
        # Nothing was said about the reference, so its name alone is all there is to keep.
        if context_windows and not history_window:
            return 1.0
        needed_words = min(len(history_window), MAX_WINDOW_WORDS)
        for window in context_windows:
            best = max(best, len(history_window & window) / needed_words)
            if best >= 1.0:
                return 1.0
    return best


class TextIndex:
    """Cache of the analysis of texts for one session: each text is analysed once, however many requests contain it."""

    __slots__ = ("_agreements", "_references", "_texts", "_windows")

    def __init__(self) -> None:
        self._texts: dict[bytes, tuple[str, ...]] = {}
        self._references: dict[str, frozenset[Reference]] = {}
        self._windows: dict[tuple[str, Reference], tuple[EvidenceWindow, ...]] = {}
        self._agreements: dict[tuple[str, str, Reference], float] = {}

    def get_texts(self, message: SizedMessage) -> tuple[str, ...]:
        """Return the texts of a message; those of equal messages are decoded once."""
        texts = self._texts.get(message.digest)
        if texts is None:
            texts = tuple(iter_reference_texts(message.message))
            self._texts[message.digest] = texts
        return texts

    def get_references(self, text: str) -> frozenset[Reference]:
        """Return the references in ``text``."""
        text_references = self._references.get(text)
        if text_references is None:
            text_references = extract_references(text)
            self._references[text] = text_references
        return text_references

    def get_windows(self, text: str, reference: Reference) -> tuple[EvidenceWindow, ...]:
        """Return the evidence windows of ``reference`` in ``text``."""
        text_windows = self._windows.get((text, reference))
        if text_windows is None:
            text_windows = find_windows(text, reference)
            self._windows[text, reference] = text_windows
        return text_windows

    def score_agreement(self, history_text: str, context_text: str, reference: Reference) -> float:
        """Return the score of ``reference`` between a text of the history and one of the context, from 0 to 1."""
        if history_text == context_text:
            return 1.0 if reference in self.get_references(history_text) else 0.0
        key = (history_text, context_text, reference)
        score = self._agreements.get(key)
        if score is None:
            history_windows = self.get_windows(history_text, reference)
            context_windows = self.get_windows(context_text, reference)
            score = score_windows(history_windows, context_windows)
            self._agreements[key] = score
        return score

    def is_kept(self, reference: Reference, history: Iterable[str], context: Iterable[str]) -> bool:
        """Return whether the context keeps evidence of ``reference`` that is in the history."""
        context_texts = [text for text in context if reference in self.get_references(text)]
        for history_text in history:
            for text in context_texts:
                if self.score_agreement(history_text, text, reference) >= KEPT_SCORE:
                    return True
        return False
