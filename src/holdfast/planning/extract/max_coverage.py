"""Weighted maximum coverage: the lines that say most for what they cost."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from holdfast.messages.references import Reference


def select_max_coverage(
    candidates: Sequence[tuple[Iterable[Reference], int]], remaining_weights: dict[Reference, float], budget: int
) -> Iterator[int]:
    """Yield candidates, most weight still in ``remaining_weights`` for their cost first, and take what each covers out
    of ``remaining_weights``.

    Gains only shrink, so a candidate whose old gain is beaten need not be looked at (Minoux 1978). One that costs
    more than what is left of the budget when its turn comes is passed over; where that is so of all, it is the end.
    """
    get = remaining_weights.get

    def gain(number: int) -> float:
        refs, cost = candidates[number]
        return sum([get(ref, 0.0) for ref in refs]) / cost

    heap = [(-gain(number), number) for number in range(len(candidates))]
    heapq.heapify(heap)
    min_cost = min((cost for _, cost in candidates), default=0)
    while heap and budget >= min_cost:
        old, number = heap[0]
        refs, cost = candidates[number]
        if cost > budget or (now := -gain(number)) >= 0:
            heapq.heappop(heap)
        elif now > old * STALE_GAIN_FACTOR:
            heapq.heapreplace(heap, (now, number))
        else:
            heapq.heappop(heap)
            yield number
            budget -= cost
            for ref in refs:
                remaining_weights.pop(ref, None)


STALE_GAIN_FACTOR = 1 - 1e-9
"""A gain smaller than remembered by more than rounding goes back into the heap."""
