"""Outline a text that is not shown: its most telling lines, with their line numbers."""

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
from holdfast.planning.extract.max_coverage import PlainCandidate, select_max_coverage


def build_text_outline(
    text: str,
    chars: int,
    first: int = 1,
    start: int = 0,
    stop: int | None = None,
) -> list[str]:
    """Return lines of ``text`` as ``number: line``, in order, at most ``chars`` characters together.

    Only characters ``start`` to ``stop`` are read; ``first`` is the line number at ``start``. Each reference counts
    once, so the chosen lines are about different things. A very long text is sampled at evenly spaced places.
    """
    if chars <= 0:
        return []
    common_names = load_common_references()
    candidates: list[PlainCandidate] = []
    numbered_lines: list[str] = []
    weights: dict[Reference, float] = {}
    for number, line in _sample_numbered_lines(text, first, start, len(text) if stop is None else stop):
        short_line = flatten_to_line(line, MAX_OUTLINE_LINE_CHARS)
        refs: list[Reference] = []
        for word in short_line.split():
            refs += [ref for ref in extract_word_references(word) if ref[1] not in common_names]
        if not refs:
            continue
        for ref in refs:
            weights[ref] = REFERENCE_KIND_WEIGHTS.get(ref[0], 1.0)
        numbered_line = f"{number}: {short_line}"
        numbered_lines.append(numbered_line)
        candidates.append(PlainCandidate(refs, len(numbered_line) + 1))  # with its line end
    chosen = sorted(select_max_coverage(candidates, weights, chars))
    return [numbered_lines[index] for index in chosen]


def _sample_numbered_lines(text: str, first: int, start: int, stop: int) -> Iterator[tuple[int, str]]:
    """Yield the lines between ``start`` and ``stop`` with their numbers.

    If they are longer than ``MAX_OUTLINE_SCAN_CHARS``, yield the whole lines of evenly spaced samples.
    """
    if stop - start <= MAX_OUTLINE_SCAN_CHARS:
        yield from enumerate(text[start:stop].split("\n"), first)
        return
    step = (stop - start) // OUTLINE_SAMPLES
    sample_chars = MAX_OUTLINE_SCAN_CHARS // OUTLINE_SAMPLES
    for sample_start in range(start, stop - sample_chars, step):
        sample_stop = sample_start + sample_chars
        line_start = text.find("\n", sample_start, sample_stop) + 1
        line_stop = text.rfind("\n", sample_start, sample_stop)
        # find() + 1 is 0 without a line end: the sample lies inside one long line, of which no whole line can be shown.
        if 0 < line_start <= line_stop:
            line_number = first + text.count("\n", start, line_start)
            yield from enumerate(text[line_start:line_stop].split("\n"), line_number)
