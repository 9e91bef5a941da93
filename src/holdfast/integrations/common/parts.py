"""Find the framework's own objects for the parts of a message that a request still shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.messages.parts import Part


def match_kept_parts(given: Sequence[Part], shown: Sequence[Part]) -> Iterator[tuple[Part, int | None]]:
    """Yield each of the ``shown`` parts with its place among the ``given`` ones; None if it was not given like that.

    Matched in order, since two parts of a kind that Holdfast does not interpret may look alike.
    """
    start = 0
    for part in shown:
        place = next((place for place in range(start, len(given)) if given[place] == part), None)
        if place is not None:
            start = place + 1
        yield part, place
