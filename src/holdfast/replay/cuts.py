"""Recall at cuts: what a context of a given size keeps of what the agent will use.

A session is cut at four places. What the assistant uses behind a cut, knew before it, and is not shown again until
then, is a *dependency*; a context is scored by how many of them it holds. Scores are counts, so that they add up over
cuts and sessions; ``pool`` makes the figures of a report of them.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import fields, replace
from zstandard import ZstdError

from holdfast.messages.cut_points import legal_cuts
from holdfast.messages.message import Message, result_text
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.messages.references import Reference, arguments, leaves, part_words, references, words
from holdfast.planning.extract.max_coverage import lazy_greedy
from holdfast.replay import gain
from holdfast.replay.evidence import KEPT, Texts, excerpts
from holdfast.replay.recall import answers, foreground, found_in, uses
from holdfast.replay.tokenizer import Counter

SHARES = (0.40, 0.55, 0.70, 0.85)
"""Where a session is cut, as shares of its tokens (METRICS, "Recall, at cuts")."""
SMALLEST_SESSION = 25_000
"""Tokens below which a session is not cut (METRICS)."""
HORIZON = 30
"""Steps behind a cut in which a first use counts (METRICS)."""
REACH = 50_000
"""Characters of a result that one handle stands for (METRICS, ``handle_recall``)."""
LONGEST_ARGUMENT = 400
"""Characters up to which an argument says what to act on; longer ones are content."""
BLOB = 12
"""Hexadecimal digits of a SHA-256 by which a spilled text is known to the model."""
SHORTEST_ID = 6
"""Characters from which a call id is looked for in words too; a shorter one would be found everywhere."""

_EDITS = re.compile(r"edit|write|patch", re.IGNORECASE)
_PATCHED = re.compile(r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(\S+)", re.MULTILINE)
WINDOWS = 40
"""Evidence windows looked at for each reference, newest first (METRICS, ``oracle``)."""
SEPARATOR = 1
"""Tokens that a line costs beside its words."""
ROUNDS = 1_000
"""Resamples of the bootstrap."""
LEVEL = 0.95
"""Share of the resamples that lie within an interval."""
OUT_OF_MEMORY = (MemoryError, RecursionError, ZstdError)
"""What ends the computation of a figure on a small machine; zstd tells of memory in an error of its own."""
SEED = 20_251_121
"""Fixed, so that a report is the same when made twice."""


class CutScore(Struct, frozen=True):
    """Counts for one context at one cut, or sums of them."""

    dependencies: int = 0
    names: int = 0
    """Dependencies present by name."""
    facts: int = 0
    """Dependencies present with evidence."""
    handles: int = 0
    """Dependencies present, or in a result that a handle in the context leads to."""
    reread_tokens: int = 0
    """Tokens of the results one would have to read again for those."""
    dated: int = 0
    """Kept facts whose newest line belongs to a path."""
    stale: int = 0
    """Of those, the ones whose file was edited after the line was said."""
    saved: int = 0
    """Bytes of the future that the context saves."""
    room: int = 0
    """Bytes of the future that the whole history saves."""
    oracle: int = 0
    """Dependencies that lines chosen with knowledge of the future keep in the same budget."""
    without_gain: int = 0
    """Cuts whose ``z_gain`` could not be computed, so that the figure is missing."""
    without_oracle: int = 0
    """Cuts whose oracle could not be computed, so that the figure is missing."""

    def __add__(self, other: CutScore) -> CutScore:
        return CutScore(*[getattr(self, f.name) + getattr(other, f.name) for f in fields(self)])


def positions(messages: Sequence[Message], sizes: Sequence[int], steps: Sequence[int] | None = None) -> list[int]:
    """Return where a session is cut: at each share of its tokens, moved to the next legal point that is a step.

    ``sizes`` are the tokens of the messages. A short session has no cuts; two shares may meet in one.
    """
    if sum(sizes) < SMALLEST_SESSION:
        return []
    legal = set(legal_cuts(messages))
    places = [step for step in (answers(messages) if steps is None else steps) if step in legal]
    before = [0, *accumulate(sizes)]
    wanted = [share * before[-1] for share in SHARES]
    found = (next((place for place in places if before[place] >= want), None) for want in wanted)
    return sorted({place for place in found if place is not None})


class Cut:
    """One cut of a session: its dependencies and all that scoring needs and that no policy changes.

    ``counter`` gives the tokens of budgets and of what is read again; ``frame`` are references that are background;
    ``steps`` are the positions of the model's answers (all assistant messages by default).
    """

    def __init__(
        self,
        messages: Sequence[Message],
        position: int,
        counter: Counter,
        frame: frozenset[Reference] = frozenset(),
        lookup: Texts | None = None,
        steps: Collection[int] | None = None,
    ) -> None:
        self.position = position
        self._lookup = lookup or Texts()
        self._counter = counter
        history = messages[:position]
        after = [m for i, m in enumerate(messages[position:], position) if _counts(m, i, steps)]
        said = list(sources(history))
        known = found_in((source.text for source in said), self._lookup)
        self.dependencies = foreground(self._needed(after, known), frame)
        """What the assistant will use, knew, and is not shown again: references, sorted."""
        self._said = self._sorted_by_reference(said)
        self._results = Results(history, self.dependencies, self._lookup, counter)
        self._future: gain.Future | None = None
        self._has_gain = True
        try:
            self._future = gain.future(history, after)
        except OUT_OF_MEMORY:
            self._has_gain = False
        self._oracles: dict[int, int] = {}

    def _needed(self, after: Sequence[Message], known: set[Reference]) -> set[Reference]:
        """Return what the next steps use for the first time, was known, and was not shown again before."""
        used: set[Reference] = set()
        shown: set[Reference] = set()
        needed: set[Reference] = set()
        steps = 0
        for message in after:
            if message.role != "assistant":
                shown |= found_in(words(message), self._lookup)
                continue
            steps += 1
            if steps > HORIZON:
                break
            new = found_in(uses(message), self._lookup) - used
            used |= new
            needed |= (new & known) - shown
        return needed

    def _sorted_by_reference(self, said: Sequence[Source]) -> dict[Reference, list[Source]]:
        """Return what was said of each dependency, newest first."""
        found: dict[Reference, list[Source]] = {ref: [] for ref in self.dependencies}
        for source in reversed(said):
            for ref in self._lookup.references(source.text) & found.keys():
                found[ref].append(source)
        return found

    def score(self, context: Sequence[Message], budget: int | None = None) -> CutScore:
        """Return what ``context`` keeps; with a ``budget`` in tokens, beside what the oracle keeps in it."""
        texts = [text for message in context for text in words(message)]
        found = self._lookup
        held = {ref: [text for text in texts if ref in found.references(text)] for ref in self.dependencies}
        origins = [(ref, self._origin(ref, kept)) for ref, kept in held.items() if kept]
        dated = [(source, paths) for ref, source in origins if source and (paths := self._paths(source, ref))]
        missing = [ref for ref, kept in held.items() if not kept]
        reread = self._results.reached(missing, context, texts)
        score = CutScore(
            dependencies=len(held),
            names=len(origins),
            facts=sum(source is not None for _, source in origins),
            handles=len(origins) + reread.reached,
            reread_tokens=reread.tokens,
            dated=len(dated),
            stale=sum(self._results.edited(paths, source.position) for source, paths in dated),
        )
        return self._with_oracle(self._with_gain(score, context), budget)

    def _with_gain(self, score: CutScore, context: Sequence[Message]) -> CutScore:
        """Add what a compressor gains by ``context``; compressing with a long history takes hundreds of megabytes."""
        if not self._has_gain:
            return replace(score, without_gain=1)
        if self._future is None:
            return score
        try:
            return replace(score, saved=self._future.saved(gain.said(context)), room=self._future.room)
        except OUT_OF_MEMORY:
            return replace(score, without_gain=1)

    def _with_oracle(self, score: CutScore, budget: int | None) -> CutScore:
        if budget is None:
            return score
        try:
            return replace(score, oracle=self.oracle(budget))
        except OUT_OF_MEMORY:
            return replace(score, without_oracle=1)

    def _origin(self, ref: Reference, kept: list[str]) -> Source | None:
        """Return the newest place of the history whose evidence of ``ref`` the context keeps."""
        for source in self._said[ref]:
            if any(self._lookup.agreement(source.text, text, ref) >= KEPT for text in kept):
                return source
        return None

    def _paths(self, source: Source, ref: Reference) -> set[Reference]:
        """Return the paths that a line belongs to: those in it, and those of the call that showed it."""
        inside = found_in(excerpts(source.text, ref), self._lookup)
        return {path for path in inside if path[0] == "path"} | source.paths

    def oracle(self, budget: int) -> int:
        """Return how many dependencies lines of the history keep that were chosen with knowledge of the future."""
        if budget not in self._oracles:
            said = {ref: [source.text for source in places] for ref, places in self._said.items()}
            lines = "\n".join(oracle_lines(said, budget, self._counter, self._lookup))
            kept = [self._lookup.is_kept(ref, texts, [lines]) for ref, texts in said.items()]
            self._oracles[budget] = sum(kept)
        return self._oracles[budget]


def _counts(message: Message, position: int, steps: Collection[int] | None) -> bool:
    """Return whether a message counts behind a cut: everybody's but an assistant's that is no step."""
    return message.role != "assistant" or steps is None or position in steps


# -- handles -----------------------------------------------------------------------------------------------------------


class Source(Struct, frozen=True):
    """A text of the history: where it stood, and the paths of the call that it belongs to."""

    text: str
    position: int
    paths: frozenset[Reference] = frozenset()


class Reread(Struct, frozen=True):
    """How many references handles lead to, and the tokens of the results behind them, each counted once."""

    reached: int = 0
    tokens: int = 0


class _Result(Struct, frozen=True):
    id: str
    blob: str
    paths: frozenset[Reference]
    text: str


def call_paths(call: ToolCall) -> frozenset[Reference]:
    """Return the paths a call names in its short arguments (bare file names where it names no path)."""
    texts = list(leaves(arguments(call)))
    found = [ref for text in texts if len(text) <= LONGEST_ARGUMENT for ref in references(text)]
    if _EDITS.search(call.name):
        found += [ref for text in texts for path in _PATCHED.findall(text) for ref in references(path)]
    paths = frozenset(ref for ref in found if ref[0] == "path")
    return paths or frozenset(ref for ref in found if ref[0] == "file")


def sources(history: Sequence[Message]) -> Iterator[Source]:
    """Yield the texts of ``history`` in order, with the paths of the call that made or showed them."""
    paths: dict[str, frozenset[Reference]] = {}
    for position, message in enumerate(history):
        for part in message.parts:
            if isinstance(part, ToolCall):
                paths[part.id] = call_paths(part)
            own = paths.get(_call_id(part), frozenset())
            yield from (Source(text, position, own) for text in part_words(part) if text)


def _call_id(part: Part) -> str:
    if isinstance(part, ToolCall):
        return part.id
    return part.call_id if isinstance(part, ToolResult) else ""


class Results:
    """The results of a history that held one of the ``wanted`` references, and the edits of files."""

    def __init__(
        self, history: Sequence[Message], wanted: Iterable[Reference], lookup: Texts, counter: Counter
    ) -> None:
        self._lookup = lookup
        self._counter = counter
        self._tokens: dict[int, int] = {}
        self._edits: dict[Reference, int] = {}
        """The position of the newest edit of each path."""
        self._all: list[_Result] = []
        self._holding: dict[Reference, list[int]] = defaultdict(list)
        self._read(history, frozenset(wanted))

    def _read(self, history: Sequence[Message], wanted: frozenset[Reference]) -> None:
        paths: dict[str, frozenset[Reference]] = {}
        for position, message in enumerate(history):
            for call in message.calls:
                paths[call.id] = call_paths(call)
                if _EDITS.search(call.name):
                    self._edits.update(dict.fromkeys(paths[call.id], position))
            for result in message.results:
                self._add(result, paths.get(result.call_id, frozenset()), wanted)

    def _add(self, result: ToolResult, paths: frozenset[Reference], wanted: frozenset[Reference]) -> None:
        whole = result_text(result)
        text = whole[:REACH]
        held = self._lookup.references(text) & wanted
        if not held:
            return
        blob = sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:BLOB]
        for ref in held:
            self._holding[ref].append(len(self._all))
        self._all.append(_Result(result.call_id, blob, paths, text))

    def edited(self, paths: Iterable[Reference], position: int) -> bool:
        """Return whether one of ``paths`` was edited behind ``position``."""
        return any(self._edits.get(path, -1) > position for path in paths)

    def reached(self, missing: Iterable[Reference], context: Sequence[Message], texts: Sequence[str]) -> Reread:
        """Return how many of ``missing`` a handle in the context leads to.

        ``texts`` are the words of ``context``. Of several results the one already read again is taken, else the
        shortest.
        """
        known = _Known(context, texts, found_in(texts, self._lookup))
        taken: set[int] = set()
        reached = 0
        for ref in missing:
            open_ = [index for index in self._holding.get(ref, ()) if known.leads_to(self._all[index])]
            reached += bool(open_)
            if open_ and taken.isdisjoint(open_):
                taken.add(min(open_, key=self._size))
        return Reread(reached, sum(map(self._size, taken)))

    def _size(self, index: int) -> int:
        if index not in self._tokens:
            self._tokens[index] = self._counter(self._all[index].text)
        return self._tokens[index]


class _Known:
    """The handles that stand in a context."""

    def __init__(self, context: Sequence[Message], texts: Sequence[str], found: Collection[Reference]) -> None:
        self._ids = {_call_id(part) for message in context for part in message.parts} - {""}
        self._words = "\n".join(texts)
        self._found = found

    def leads_to(self, result: _Result) -> bool:
        """Return whether the call id, a path or the blob id of ``result`` stands in the context."""
        if result.id in self._ids or any(path in self._found for path in result.paths):
            return True
        return result.blob in self._words or (len(result.id) >= SHORTEST_ID and result.id in self._words)


# -- the oracle --------------------------------------------------------------------------------------------------------


def oracle_lines(said: Mapping[Reference, Sequence[str]], budget: int, counter: Counter, lookup: Texts) -> list[str]:
    """Return lines that hold as many of the references as a lazy greedy cover finds, within ``budget`` tokens.

    ``said`` holds for each reference the texts in which it stood, newest first.
    """
    covers = _candidates(said, lookup)
    lines = list(covers)
    priced = [(covers[line], counter(line) + SEPARATOR) for line in lines]
    return [lines[index] for index in sorted(lazy_greedy(priced, dict.fromkeys(said, 1.0), budget))]


def _candidates(said: Mapping[Reference, Sequence[str]], lookup: Texts) -> dict[str, frozenset[Reference]]:
    """Return the lines worth choosing with the references each keeps as a fact."""
    found: dict[str, set[Reference]] = {}
    for ref, texts in said.items():
        lines = dict.fromkeys(line.strip() for text in texts for line in excerpts(text, ref))
        for line in list(lines)[:WINDOWS]:
            found.setdefault(line, set()).add(ref)
    for line, refs in found.items():
        refs |= {ref for ref in lookup.references(line) & said.keys() if lookup.is_kept(ref, said[ref], [line])}
    return {line: frozenset(refs) for line, refs in found.items()}


# -- figures -----------------------------------------------------------------------------------------------------------


class Figures(Struct, frozen=True):
    """What METRICS calls "Recall, at cuts"; a share of nothing is nothing."""

    dependencies: int
    fact_recall: float | None
    name_recall: float | None
    handle_recall: float | None
    reread_tokens: int
    z_gain: float | None
    stale: float | None
    oracle: float | None


def pool(scores: Iterable[CutScore]) -> Figures:
    """Return the figures of ``scores`` together: micro-averages over dependencies, lines and bytes."""
    total = sum(scores, CutScore())
    return Figures(
        dependencies=total.dependencies,
        fact_recall=_share(total.facts, total.dependencies),
        name_recall=_share(total.names, total.dependencies),
        handle_recall=_share(total.handles, total.dependencies),
        reread_tokens=total.reread_tokens,
        z_gain=None if total.without_gain else _share(total.saved, total.room),
        stale=_share(total.stale, total.dated),
        oracle=None if total.without_oracle else _share(total.oracle, total.dependencies),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def interval(sessions: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a micro-average over sessions, each given as (kept, dependencies).

    Cuts of one session are not independent, so whole sessions are drawn. Nothing without dependencies.
    """
    pairs = [pair for pair in sessions if pair[1] > 0]
    if not pairs:
        return None
    draw = random.Random(SEED)  # noqa: S311 - resampling, not a secret
    shares = sorted(_micro(draw.choices(pairs, k=len(pairs))) for _ in range(ROUNDS))
    edge = (1 - LEVEL) / 2
    return shares[int(edge * ROUNDS)], shares[min(ROUNDS - 1, int((1 - edge) * ROUNDS))]


def _micro(pairs: Iterable[tuple[int, int]]) -> float:
    kept, total = map(sum, zip(*pairs, strict=True))
    return kept / total
