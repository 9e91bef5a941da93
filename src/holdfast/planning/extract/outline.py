"""An outline of a text that is not shown: the lines that name most things for their length, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.messages.references import Reference, extract_word_references, load_common_references
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.planning.extract.constants import (
    MAX_OUTLINE_LINE_CHARS,
    MAX_OUTLINE_SCAN_CHARS,
    OUTLINE_SAMPLES,
    REFERENCE_KIND_WEIGHTS,
)
from holdfast.planning.extract.max_coverage import select_max_coverage


def build_text_outline(text: str, chars: int, first: int = 1, start: int = 0, stop: int | None = None) -> list[str]:
    """Return lines of ``text`` as ``number: line``, in order, together within ``chars``.

    Only what lies between characters ``start`` and ``stop`` is looked at; ``first`` is the number of the line there.
    Each name counts once, so the lines are chosen to be about different things. Of a very long text some places are
    read, evenly spaced.
    """
    if chars <= 0:
        return []
    background_names = load_common_references()
    candidates: list[tuple[list[Reference], int]] = []
    numbered_lines: list[str] = []
    weights: dict[Reference, float] = {}
    for number, line in _sample_numbered_lines(text, first, start, len(text) if stop is None else stop):
        short = flatten_to_line(line, MAX_OUTLINE_LINE_CHARS)
        refs = [
            ref for piece in short.split() for ref in extract_word_references(piece) if ref[1] not in background_names
        ]
        if refs:
            weights.update((ref, REFERENCE_KIND_WEIGHTS.get(ref[0], 1.0)) for ref in refs)
            numbered_lines.append(f"{number}: {short}")
            candidates.append((refs, len(numbered_lines[-1]) + 1))
    chosen = sorted(select_max_coverage(candidates, weights, chars))
    return [numbered_lines[number] for number in chosen]


def _sample_numbered_lines(text: str, first: int, start: int, stop: int) -> Iterator[tuple[int, str]]:
    """Yield the lines between ``start`` and ``stop`` with their numbers; of more than ``MAX_OUTLINE_SCAN_CHARS``, a
    sample.
    """
    if stop - start <= MAX_OUTLINE_SCAN_CHARS:
        yield from enumerate(text[start:stop].split("\n"), first)
        return
    step, size = (stop - start) // OUTLINE_SAMPLES, MAX_OUTLINE_SCAN_CHARS // OUTLINE_SAMPLES
    for at in range(start, stop - size, step):
        begin, end = text.find("\n", at, at + size) + 1, text.rfind("\n", at, at + size)
        if 0 < begin <= end:  # whole lines
            yield from enumerate(text[begin:end].split("\n"), first + text.count("\n", start, begin))
