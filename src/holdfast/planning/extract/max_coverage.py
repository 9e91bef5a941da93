"""Weighted maximum coverage: choose the lines that say most for what they cost."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from holdfast.messages.references import Reference

STALE_GAIN_FACTOR = 1 - 1e-9
"""A candidate goes back into the heap if its gain shrank by more than this factor. The tolerance keeps a difference in
rounding from counting as a smaller gain."""


MAX_SKIPPED = 32
"""Candidates over the budget that are skipped one by one before all others over it are looked for. Measured: heads of
4,000 lines end with a thousand or more of them."""


def select_max_coverage(
    candidates: Sequence[tuple[Iterable[Reference], int]],
    remaining_weights: dict[Reference, float],
    budget: int,
    min_gain: float = 0.0,
) -> Iterator[int]:
    """Yield the indexes of candidates, each ``(references, cost)``, the best by new weight per cost first.

    The references of each yielded candidate are removed from ``remaining_weights``, so that nothing is paid twice. A
    candidate that costs more than is left of the budget is skipped; selection ends when the cheapest one does, or when
    no candidate adds more than ``min_gain`` weight per cost.
    """
    get_weight = remaining_weights.get

    def compute_gain(number: int) -> float:
        refs, cost = candidates[number]
        return sum(map(get_weight, refs, repeat(0.0))) / cost

    # Lazy greedy (Minoux 1978): a gain only shrinks as references get covered, so the remembered gain is an upper
    # bound. If the recomputed gain of the top candidate still equals it, no other can be better and none need be
    # recomputed; a candidate that adds too little at first never adds more. Gains are negated because heapq keeps the
    # smallest on top; ties go to the earlier candidate.
    heap = []
    for number, (refs, cost) in enumerate(candidates):
        gain = sum(map(get_weight, refs, repeat(0.0))) / cost
        if gain > min_gain:
            heap.append((-gain, number))
    heapq.heapify(heap)
    min_cost = min((candidates[number][1] for _, number in heap), default=0)
    skipped_count = 0
    while heap and budget >= min_cost:
        remembered_loss, number = heap[0]
        refs, cost = candidates[number]
        if cost > budget:
            heapq.heappop(heap)
            skipped_count += 1
            if skipped_count % MAX_SKIPPED == 0:
                # Near the end most candidates are too dear. Leaving them all out at once is faster than one by one.
                heap = [entry for entry in heap if candidates[entry[1]][1] <= budget]
                heapq.heapify(heap)
            continue
        if -remembered_loss <= min_gain:  # gains only shrink, so no other adds more
            break
        loss = -compute_gain(number)
        if loss >= 0:  # everything it refers to is covered
            heapq.heappop(heap)
            continue
        if loss > remembered_loss * STALE_GAIN_FACTOR:
            heapq.heapreplace(heap, (loss, number))
            continue
        heapq.heappop(heap)
        yield number
        budget -= cost
        for ref in refs:
            remaining_weights.pop(ref, None)
