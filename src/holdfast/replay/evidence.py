"""Evidence: not only the name of a thing, but what was said about it.

An *evidence window* of a reference is the line that contains it, at most 120 characters to each side, as its set of
words, the reference left out. A reference is kept as a fact if some window of it in the context has at least half of
the words (of eight, where there are more) of some window of it in the history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.messages.references import Reference, of_piece, references, words
from holdfast.messages.sized_message import Slot

SIDE = 120
"""Characters of the line that count on each side of a reference (METRICS, ``fact_recall``)."""
ENOUGH = 8
"""Words of a window beyond which more are not asked for (METRICS)."""
KEPT = 0.5
"""Score from which a reference counts as kept (METRICS)."""

_WORD = re.compile(r"[A-Za-z_]{3,}|\d+|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Words of three letters and more, runs of digits, and each Chinese, Japanese or Korean character for itself."""
_PIECE = re.compile(r"\S+")

Window = frozenset[str]
"""The words around one occurrence of a reference."""


def excerpts(text: str, reference: Reference) -> Iterator[str]:
    """Yield the line around each occurrence of ``reference`` in ``text``, at most 120 characters to each side."""
    needle = _needle(reference)
    position = text.find(needle)
    while position >= 0:
        start = text.rfind("\n", 0, position) + 1
        stop = text.find("\n", position)
        stop = len(text) if stop < 0 else stop
        yield from _around(text[start:stop], reference, needle)
        position = text.find(needle, stop)


def _needle(reference: Reference) -> str:
    """Return what stands literally wherever the reference does: of a path the last name, else the key."""
    kind, key = reference
    return key.rsplit("/", 1)[-1] if kind == "path" else key


def _around(line: str, reference: Reference, needle: str) -> Iterator[str]:
    for piece in _PIECE.finditer(line):
        word = piece.group()
        if needle not in word or reference not in of_piece(word):
            continue
        key = reference[1] if reference[1] in word else needle
        at = word.find(key)
        while at >= 0:
            start = piece.start() + at
            yield line[max(0, start - SIDE) : start + len(key) + SIDE]
            at = word.find(key, at + len(key))


def windows(text: str, reference: Reference) -> tuple[Window, ...]:
    """Return the evidence windows of ``reference`` in ``text``, each once, in order."""
    own = frozenset(_WORD.findall(reference[1]))
    return tuple(dict.fromkeys(frozenset(_WORD.findall(line)) - own for line in excerpts(text, reference)))


def score(history: Iterable[Window], context: Iterable[Window]) -> float:
    """Return the best agreement of a window of the context with one of the history, from 0 to 1."""
    kept = tuple(context)
    best = 0.0
    for said in history:
        if kept and not said:
            return 1.0
        for window in kept:
            best = max(best, len(said & window) / min(len(said), ENOUGH))
            if best >= 1.0:
                return 1.0
    return best


class Texts:
    """What was found in texts, so that none is read twice however many requests hold it; lives as long as a session."""

    __slots__ = ("_agreements", "_references", "_said", "_windows")

    def __init__(self) -> None:
        self._said: dict[bytes, tuple[str, ...]] = {}
        self._references: dict[str, frozenset[Reference]] = {}
        self._windows: dict[tuple[str, Reference], tuple[Window, ...]] = {}
        self._agreements: dict[tuple[str, str, Reference], float] = {}

    def said(self, slot: Slot) -> tuple[str, ...]:
        """Return the texts of a slot; arguments are decoded once for each digest."""
        found = self._said.get(slot.digest)
        if found is None:
            found = self._said[slot.digest] = tuple(words(slot.message))
        return found

    def references(self, text: str) -> frozenset[Reference]:
        """Return the references in ``text``."""
        found = self._references.get(text)
        if found is None:
            found = self._references[text] = references(text)
        return found

    def windows(self, text: str, reference: Reference) -> tuple[Window, ...]:
        """Return the evidence windows of ``reference`` in ``text``."""
        found = self._windows.get((text, reference))
        if found is None:
            found = self._windows[text, reference] = windows(text, reference)
        return found

    def agreement(self, said: str, kept: str, reference: Reference) -> float:
        """Return the score of ``reference`` between one text of the history and one of the context."""
        if said == kept:
            return 1.0 if reference in self.references(said) else 0.0
        key = (said, kept, reference)
        found = self._agreements.get(key)
        if found is None:
            found = score(self.windows(said, reference), self.windows(kept, reference))
            self._agreements[key] = found
        return found

    def is_kept(self, reference: Reference, history: Iterable[str], context: Iterable[str]) -> bool:
        """Return whether some text of the context holds evidence of ``reference`` as some text of the history does."""
        kept = [text for text in context if reference in self.references(text)]
        return any(self.agreement(said, text, reference) >= KEPT for said in history for text in kept)
