"""Salience: guess which references the agent will need again from how it used them so far."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from holdfast.messages.references import (
    MAX_CACHED_CHARS,
    Reference,
    extract_word_references,
    get_cached_word_references,
    iter_part_texts,
    iter_reference_texts,
    load_common_references,
)
from holdfast.messages.size.tokens import estimate_tokens_by_text
from holdfast.messages.sized_message import SizedMessage, bound_message_chars
from holdfast.messages.text.memo import cache_by_identity, cache_by_text
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.planning.extract.constants import (
    AGE_DECAY_EXPONENT,
    IDLE_DECAY_EXPONENT,
    LIST_ITEM_WEIGHT,
    MAX_QUOTED_LINE_CHARS,
    REFERENCE_KIND_WEIGHTS,
    SINGLE_USE_WEIGHT,
    UNUSED_IDLE_KTOKENS,
)

# File readers number their lines ("12→", "12\t", "12: "). Quoted without the number, a line that an edit moved is
# still the same line.
_LINE_NUMBER = re.compile(r"^\s*\d+(?:→|\t|: ?)")
# Plans, to-dos and requirements are written as list items.
_LIST_ITEM = re.compile(r"^\s*(?:[-*•○●] |\d+[.)] |\[[ x]\])")


class ReferenceLine(Struct, frozen=True, gc=False):
    """A line that holds references, as it may be quoted."""

    text: str
    refs: tuple[Reference, ...]
    cost: int
    """Estimator tokens."""
    is_list_item: bool = False
    """Whether it is, or was cut from, a list item."""


class ReferenceUse(Struct, gc=False):
    """How often and where a reference stood. Positions are estimator tokens from the start of the head."""

    is_repeated: bool = False
    """Whether it stood in more than one message."""
    use_count: int = 0
    """Messages of the agent or the user in which it stood; a tool result that shows it is no use."""
    last_position: int = 0
    last_used_position: int = -1
    in_list_item: bool = False
    """Whether it stood in a list item."""


REFERENCE_BYTES = LINE_BYTES = 128
"""Bytes in memory of a reference, and of a line beside its text and references, as measured. They bound the memo."""


def estimate_line_memory(found_lines: tuple[ReferenceLine, ...]) -> int:
    """Estimate the bytes that ``found_lines`` take in memory."""
    return sum([LINE_BYTES + len(line.text) + REFERENCE_BYTES * len(line.refs) for line in found_lines])


def estimate_reference_memory(found_references: Collection[Reference]) -> int:
    """Estimate the bytes that ``found_references`` take in memory."""
    return REFERENCE_BYTES * len(found_references)


# The functions below that read a text are memoized by it: each compaction reads the whole head again, and all but its
# newest messages were there the last time.


@cache_by_text(estimate_line_memory)
def find_reference_lines(text: str) -> tuple[ReferenceLine, ...]:
    """Return the distinct lines of ``text`` that hold references, trimmed, in order."""
    refs_by_line: dict[str, tuple[Reference, ...]] = {}
    list_items: set[str] = set()
    for full_line in text.split("\n"):
        if not full_line or full_line.isspace():
            continue
        is_list_item = _LIST_ITEM.match(full_line) is not None
        for line in _split_quotable_line(_LINE_NUMBER.sub("", full_line, count=1).strip()):
            if line in refs_by_line:
                continue
            refs = tuple(dict.fromkeys(_iter_distinctive_references(line)))
            if refs:
                refs_by_line[line] = refs
                if is_list_item:
                    list_items.add(line)
    costs = estimate_tokens_by_text(refs_by_line)
    found_lines: list[ReferenceLine] = []
    for (line, refs), cost in zip(refs_by_line.items(), costs, strict=True):
        found_lines.append(ReferenceLine(line, refs, cost, line in list_items))
    return tuple(found_lines)


def _split_quotable_line(line: str) -> list[str]:
    """Cut a line into pieces of at most ``MAX_QUOTED_LINE_CHARS``, if possible at a space in their second half."""
    if len(line) <= MAX_QUOTED_LINE_CHARS:
        return [line]
    pieces: list[str] = []
    start = 0
    while start < len(line):
        stop = start + MAX_QUOTED_LINE_CHARS
        if stop < len(line):
            space = line.rfind(" ", start + MAX_QUOTED_LINE_CHARS // 2, stop)
            stop = space + 1 if space > 0 else stop
        pieces.append(line[start:stop].strip())
        start = stop
    return [piece for piece in pieces if piece]


@cache_by_text(estimate_reference_memory)
def find_distinctive_references(text: str) -> tuple[Reference, ...]:
    """Return the distinct references of ``text`` that are not common to every project, in order of appearance."""
    return tuple(dict.fromkeys(_iter_distinctive_references(text)))


def _iter_distinctive_references(text: str) -> Iterator[Reference]:
    common_names = load_common_references()
    for word in text.split():
        # As ``extract_word_references`` does, without the call: a compaction goes through some hundred thousand words.
        refs = get_cached_word_references(word) if len(word) <= MAX_CACHED_CHARS else extract_word_references(word)
        for ref in refs:
            if ref[1] not in common_names:
                yield ref


def find_message_references(sized_message: SizedMessage) -> frozenset[Reference]:
    """Return the distinctive references of a message."""
    return frozenset().union(*map(find_distinctive_references, iter_reference_texts(sized_message.message)))


@cache_by_text(estimate_reference_memory)
def find_list_references(text: str) -> frozenset[Reference]:
    """Return the references that stand in list items of ``text``."""
    refs: set[Reference] = set()
    for line in find_reference_lines(text):
        if line.is_list_item:
            refs.update(line.refs)
    return frozenset(refs)


def find_message_list_references(sized_message: SizedMessage) -> frozenset[Reference]:
    """Return the references that stand in list items of a message."""
    return frozenset().union(*[find_list_references(text) for text in iter_reference_texts(sized_message.message)])


LINE_OVERHEAD_TOKENS = 2
"""Estimator tokens of a line beside its text: its bullet and line end."""


class QuotableLine(Struct, frozen=True, gc=False):
    """A line of a message that may be quoted, and where it stands there.

    The line's own fields stand here again: each compaction looks at all of them, and one object less to go through is
    a tenth of the time of choosing.
    """

    text: str
    refs: tuple[Reference, ...]
    cost: int
    """Estimator tokens of quoting it, with ``LINE_OVERHEAD_TOKENS``."""
    part_index: int
    """Index among the parts of ``merge_adjacent_texts``."""
    line_number: int
    """Number among the lines of the part."""


class MessageScan(Struct, frozen=True, gc=False):
    """The references of a message, and its lines that hold any: all that depends on nothing but the message.

    Sets and dicts, because each compaction merges those of the whole head: merging them hashes no item again.
    """

    refs: frozenset[Reference]
    list_refs: frozenset[Reference]
    lines: Mapping[str, QuotableLine]
    """The distinct lines by their text, each at the last place where it stands."""


_SCANNED_LINE_BYTES, _BYTES_PER_TOKEN = 256, 5
"""Bytes in memory of a line of a scan with its position, and of a message for each token. They bound the memo."""


def _estimate_scan_memory(scan: MessageScan, sized_message: SizedMessage) -> int:
    # The memo keeps the whole message alive. Its pictures may be far larger than their tokens.
    size = max(_BYTES_PER_TOKEN * sized_message.tokens, bound_message_chars(sized_message))
    size += _SCANNED_LINE_BYTES * len(scan.lines)
    return size + REFERENCE_BYTES * (len(scan.refs) + len(scan.list_refs))


@cache_by_identity(_estimate_scan_memory)
def scan_message(sized_message: SizedMessage) -> MessageScan:
    """Find the references and lines of a message. Most messages of a head were there at the last compaction."""
    lines: dict[str, QuotableLine] = {}
    for part_index, part in enumerate(merge_adjacent_texts(sized_message.message)):
        line_number = 0
        for text in iter_part_texts(part):
            for line in find_reference_lines(text):
                line_number += 1
                cost = line.cost + LINE_OVERHEAD_TOKENS
                lines[line.text] = QuotableLine(line.text, line.refs, cost, part_index, line_number)
    refs = find_message_references(sized_message)
    # A line that is cut in a word may hold a reference that the message does not.
    list_refs = find_message_list_references(sized_message).intersection(refs)
    return MessageScan(refs, list_refs, lines)


def trace_references(sized_messages: Sequence[SizedMessage]) -> dict[Reference, ReferenceUse]:
    """Return how each reference occurred in ``sized_messages``."""
    # Whole messages are merged at once: a head has some ten thousand places of references, and each compaction goes
    # through all of them. References are hashed again only where they must be counted.
    found_refs: set[Reference] = set()
    repeated_refs: set[Reference] = set()
    use_counts: Counter[Reference] = Counter()
    last_positions: dict[Reference, int] = {}
    last_used_positions: dict[Reference, int] = {}
    listed_refs: set[Reference] = set()
    position = 0
    for sized_message in sized_messages:
        position += sized_message.tokens
        scan = scan_message(sized_message)
        positions = dict.fromkeys(scan.refs, position)
        repeated_refs |= found_refs & scan.refs
        found_refs |= scan.refs
        last_positions.update(positions)
        listed_refs |= scan.list_refs
        if sized_message.message.role in {"assistant", "user"}:
            use_counts.update(scan.refs)
            last_used_positions.update(positions)
    uses_by_ref: dict[Reference, ReferenceUse] = {}
    for ref, last_position in last_positions.items():
        use_count = use_counts.get(ref, 0)
        last_used_position = last_used_positions[ref] if use_count else -1
        uses_by_ref[ref] = ReferenceUse(
            ref in repeated_refs, use_count, last_position, last_used_position, ref in listed_refs
        )
    return uses_by_ref


def weigh_reference(ref: Reference, use: ReferenceUse, length: int) -> float:
    """Return how likely a reference is needed again, up to a constant factor.

    It is likelier the more often the agent used it, and the more recently it stood anywhere and was used. ``length`` is
    the size of the head in estimator tokens.
    """
    # The form of the model behind the fit (see AGE_DECAY_EXPONENT): independent factors, with power-law forgetting of
    # the distance in thousands of tokens.
    age = (length - use.last_position) / 1000
    if use.use_count:
        idle = (length - use.last_used_position) / 1000
    else:
        idle = UNUSED_IDLE_KTOKENS
    frequency = 1.0 + use.use_count
    if use.use_count and not use.is_repeated:
        frequency *= SINGLE_USE_WEIGHT
    kind_factor = REFERENCE_KIND_WEIGHTS.get(ref[0], 1.0)
    list_factor = LIST_ITEM_WEIGHT if use.in_list_item else 1.0
    forgetting = math.pow(1 + age, AGE_DECAY_EXPONENT) * math.pow(1 + idle, IDLE_DECAY_EXPONENT)
    return kind_factor * list_factor * frequency / forgetting
