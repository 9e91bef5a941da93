"""Evidence: not only the name of a thing, but what was said about it.

An *evidence window* of a reference is the line that contains it, at most 120 characters to each side, as its set of
words, the reference left out. A reference is kept as a fact if some window of it in the context has at least half of
the words (of eight, where there are more) of some window of it in the history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.messages.references import Reference, extract_references, extract_word_references, iter_reference_texts
from holdfast.messages.sized_message import SizedMessage

WINDOW_SIDE = 120
"""Characters of the line that count on each side of a reference (METRICS, ``fact_recall``)."""
MAX_WINDOW_WORDS = 8
"""Words of a window beyond which more are not asked for (METRICS)."""
KEPT_SCORE = 0.5
"""Score from which a reference counts as kept (METRICS)."""

_EVIDENCE_WORD = re.compile(r"[A-Za-z_]{3,}|\d+|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Words of three letters and more, runs of digits, and each Chinese, Japanese or Korean character for itself."""
_NON_SPACE = re.compile(r"\S+")

EvidenceWindow = frozenset[str]
"""The words around one occurrence of a reference."""


def iter_excerpts(text: str, reference: Reference) -> Iterator[str]:
    """Yield the line around each occurrence of ``reference`` in ``text``, at most 120 characters to each side."""
    needle = _get_literal(reference)
    position = text.find(needle)
    while position >= 0:
        start = text.rfind("\n", 0, position) + 1
        stop = text.find("\n", position)
        stop = len(text) if stop < 0 else stop
        yield from _iterate_line_excerpts(text[start:stop], reference, needle)
        position = text.find(needle, stop)


def _get_literal(reference: Reference) -> str:
    """Return what stands literally wherever the reference does: of a path the last name, else the key."""
    kind, key = reference
    return key.rsplit("/", 1)[-1] if kind == "path" else key


def _iterate_line_excerpts(line: str, reference: Reference, needle: str) -> Iterator[str]:
    for piece in _NON_SPACE.finditer(line):
        word = piece.group()
        if needle not in word or reference not in extract_word_references(word):
            continue
        key = reference[1] if reference[1] in word else needle
        at = word.find(key)
        while at >= 0:
            start = piece.start() + at
            yield line[max(0, start - WINDOW_SIDE) : start + len(key) + WINDOW_SIDE]
            at = word.find(key, at + len(key))


def find_windows(text: str, reference: Reference) -> tuple[EvidenceWindow, ...]:
    """Return the evidence windows of ``reference`` in ``text``, each once, in order."""
    own = frozenset(_EVIDENCE_WORD.findall(reference[1]))
    return tuple(
        dict.fromkeys(frozenset(_EVIDENCE_WORD.findall(line)) - own for line in iter_excerpts(text, reference))
    )


def score_windows(history: Iterable[EvidenceWindow], context: Iterable[EvidenceWindow]) -> float:
    """Return the best agreement of a window of the context with one of the history, from 0 to 1."""
    context_windows = tuple(context)
    best = 0.0
    for history_window in history:
        if context_windows and not history_window:
            return 1.0
        for window in context_windows:
            best = max(best, len(history_window & window) / min(len(history_window), MAX_WINDOW_WORDS))
            if best >= 1.0:
                return 1.0
    return best


class TextIndex:
    """What was found in texts, so that none is read twice however many requests hold it; lives as long as a session."""

    __slots__ = ("_agreements", "_references", "_said", "_windows")

    def __init__(self) -> None:
        self._said: dict[bytes, tuple[str, ...]] = {}
        self._references: dict[str, frozenset[Reference]] = {}
        self._windows: dict[tuple[str, Reference], tuple[EvidenceWindow, ...]] = {}
        self._agreements: dict[tuple[str, str, Reference], float] = {}

    def get_texts(self, message: SizedMessage) -> tuple[str, ...]:
        """Return the texts of a slot; arguments are decoded once for each digest."""
        texts = self._said.get(message.digest)
        if texts is None:
            texts = self._said[message.digest] = tuple(iter_reference_texts(message.message))
        return texts

    def get_references(self, text: str) -> frozenset[Reference]:
        """Return the references in ``text``."""
        text_references = self._references.get(text)
        if text_references is None:
            text_references = self._references[text] = extract_references(text)
        return text_references

    def get_windows(self, text: str, reference: Reference) -> tuple[EvidenceWindow, ...]:
        """Return the evidence windows of ``reference`` in ``text``."""
        text_windows = self._windows.get((text, reference))
        if text_windows is None:
            text_windows = self._windows[text, reference] = find_windows(text, reference)
        return text_windows

    def score_agreement(self, history_text: str, context_text: str, reference: Reference) -> float:
        """Return the score of ``reference`` between one text of the history and one of the context."""
        if history_text == context_text:
            return 1.0 if reference in self.get_references(history_text) else 0.0
        key = (history_text, context_text, reference)
        value = self._agreements.get(key)
        if value is None:
            value = score_windows(self.get_windows(history_text, reference), self.get_windows(context_text, reference))
            self._agreements[key] = value
        return value

    def is_kept(self, reference: Reference, history: Iterable[str], context: Iterable[str]) -> bool:
        """Return whether some text of the context holds evidence of ``reference`` as some text of the history does."""
        context_texts = [text for text in context if reference in self.get_references(text)]
        return any(
            self.score_agreement(history_text, text, reference) >= KEPT_SCORE
            for history_text in history
            for text in context_texts
        )
