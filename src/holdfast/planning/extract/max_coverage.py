"""Weighted maximum coverage: choose the lines that say most for what they cost."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from typing import Protocol

from msgspec import Struct

from holdfast.messages.references import Reference

STALE_GAIN_FACTOR = 1 - 1e-9
"""A candidate goes back into the heap if its gain shrank by more than this factor. The tolerance keeps a difference in
rounding from counting as a smaller gain."""


MAX_SKIPPED = 32
"""Candidates over the budget that are skipped one by one before all others over it are looked for. Measured: heads of
4,000 lines end with a thousand or more of them."""


class CoverageCandidate(Protocol):
    """What may be selected: the references that it covers, and its cost."""

    @property
    def refs(self) -> Collection[Reference]:
        """The references that it covers."""

    @property
    def cost(self) -> int:
        """What it takes of the budget."""


class PlainCandidate(Struct, frozen=True, gc=False):
    """A candidate that is nothing else."""

    refs: Collection[Reference]
    cost: int


def select_max_coverage(
    candidates: Sequence[CoverageCandidate],
    remaining_weights: dict[Reference, float],
    budget: int,
    min_gain: float = 0.0,
) -> Iterator[int]:
    """Yield the indexes of ``candidates``, the best by new weight per cost first.

    The references of each yielded candidate are removed from ``remaining_weights``, so that nothing is paid twice. A
    candidate that costs more than is left of the budget is skipped; selection ends when the cheapest one does, or when
    no candidate adds more than ``min_gain`` weight per cost.
    """
    # Lazy greedy (Minoux 1978): a gain only shrinks as references get covered, so the remembered gain is an upper
    # bound. If the recomputed gain of the top candidate still equals it, no other can be better and none need be
    # recomputed. Gains are negated because heapq keeps the smallest on top; ties go to the earlier candidate.
    heap = _build_heap(candidates, remaining_weights, min_gain)
    get_weight = remaining_weights.get
    min_cost = min([candidates[number].cost for _, number in heap], default=0)
    skipped_count = 0
    while heap and budget >= min_cost:
        remembered_loss, number = heap[0]
        candidate = candidates[number]
        if candidate.cost > budget:
            heapq.heappop(heap)
            skipped_count += 1
            if skipped_count % MAX_SKIPPED == 0:
                # Near the end most candidates are too dear. Leaving them all out at once is faster than one by one.
                heap = [entry for entry in heap if candidates[entry[1]].cost <= budget]
                heapq.heapify(heap)
            continue
        if -remembered_loss <= min_gain:  # gains only shrink, so no other adds more
            break
        loss = -sum(map(get_weight, candidate.refs, repeat(0.0))) / candidate.cost
        if loss >= 0:  # everything it refers to is covered
            heapq.heappop(heap)
            continue
        if loss > remembered_loss * STALE_GAIN_FACTOR:
            heapq.heapreplace(heap, (loss, number))
            continue
        heapq.heappop(heap)
        yield number
        budget -= candidate.cost
        for ref in candidate.refs:
            remaining_weights.pop(ref, None)


def _build_heap(
    candidates: Sequence[CoverageCandidate], weights: dict[Reference, float], min_gain: float
) -> list[tuple[float, int]]:
    """Return a heap of the candidates that gain more than ``min_gain``: the negated gain and the index of each.

    The others may be left out, since gains only shrink.
    """
    heap: list[tuple[float, int]] = []
    get_weight = weights.get
    for number, candidate in enumerate(candidates):
        gain = sum(map(get_weight, candidate.refs, repeat(0.0))) / candidate.cost
        if gain > min_gain:
            heap.append((-gain, number))
    heapq.heapify(heap)
    return heap
