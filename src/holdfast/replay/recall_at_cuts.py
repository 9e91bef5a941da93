"""Recall at cuts: what a context of a given size keeps of what the agent will use.

A session is cut at four places. What the assistant uses behind a cut, knew before it, and is not shown again until
then, is a *dependency*; a context is scored by how many of them it holds. Scores are counts, so that they add up over
cuts and sessions; ``pool_scores`` makes the figures of a report of them.
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

from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Part, ToolCall, ToolResult
from holdfast.messages.references import (
    Reference,
    decode_call_arguments,
    extract_references,
    iter_json_strings,
    iter_part_texts,
    iter_reference_texts,
)
from holdfast.planning.extract.max_coverage import select_max_coverage
from holdfast.replay import conditional_compression as gain
from holdfast.replay.evidence import KEPT_SCORE, TextIndex, iter_excerpts
from holdfast.replay.recall import drop_background, find_answer_positions, find_references, iter_used_texts
from holdfast.replay.tokenizer import TextCounter

CUT_SHARES = (0.40, 0.55, 0.70, 0.85)
"""Where a session is cut, as shares of its tokens (METRICS, "Recall, at cuts")."""
MIN_SESSION_TOKENS = 25_000
"""Tokens below which a session is not cut (METRICS)."""
HORIZON_STEPS = 30
"""Steps behind a cut in which a first use counts (METRICS)."""
HANDLE_REACH = 50_000
"""Characters of a result that one handle stands for (METRICS, ``handle_recall``)."""
MAX_ARGUMENT_LENGTH = 400
"""Characters up to which an argument says what to act on; longer ones are content."""
BLOB_ID_DIGITS = 12
"""Hexadecimal digits of a SHA-256 by which a spilled text is known to the model."""
MIN_SEARCHED_ID = 6
"""Characters from which a call id is looked for in words too; a shorter one would be found everywhere."""

_EDIT_TOOL_NAME = re.compile(r"edit|write|patch", re.IGNORECASE)
_PATCHED_PATH = re.compile(r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(\S+)", re.MULTILINE)
MAX_WINDOWS = 40
"""Evidence windows looked at for each reference, newest first (METRICS, ``oracle``)."""
LINE_COST = 1
"""Tokens that a line costs beside its words."""
BOOTSTRAP_ROUNDS = 1_000
"""Resamples of the bootstrap."""
CONFIDENCE_LEVEL = 0.95
"""Share of the resamples that lie within an interval."""
MEMORY_ERRORS = (MemoryError, RecursionError, ZstdError)
"""What ends the computation of a figure on a small machine; zstd tells of memory in an error of its own."""
BOOTSTRAP_SEED = 20_251_121
"""Fixed, so that a report is the same when made twice."""


class CutScore(Struct, frozen=True):
    """Counts for one context at one cut, or sums of them."""

    dependencies: int = 0
    kept_names: int = 0
    """Dependencies present by name."""
    kept_facts: int = 0
    """Dependencies present with evidence."""
    reachable: int = 0
    """Dependencies present, or in a result that a handle in the context leads to."""
    reread_tokens: int = 0
    """Tokens of the results one would have to read again for those."""
    dated_facts: int = 0
    """Kept facts whose newest line belongs to a path."""
    stale: int = 0
    """Of those, the ones whose file was edited after the line was said."""
    saved_bytes: int = 0
    """Bytes of the future that the context saves."""
    max_saved: int = 0
    """Bytes of the future that the whole history saves."""
    oracle: int = 0
    """Dependencies that lines chosen with knowledge of the future keep in the same budget."""
    without_gain: int = 0
    """Cuts whose ``z_gain`` could not be computed, so that the figure is missing."""
    without_oracle: int = 0
    """Cuts whose oracle could not be computed, so that the figure is missing."""

    def __add__(self, other: CutScore) -> CutScore:
        return CutScore(*[getattr(self, f.name) + getattr(other, f.name) for f in fields(self)])


def find_cut_positions(
    messages: Sequence[Message], sizes: Sequence[int], steps: Sequence[int] | None = None
) -> list[int]:
    """Return where a session is cut: at each share of its tokens, moved to the next legal point that is a step.

    ``sizes`` are the tokens of the messages. A short session has no cuts; two shares may meet in one.
    """
    if sum(sizes) < MIN_SESSION_TOKENS:
        return []
    legal = set(find_cut_points(messages))
    places = [step for step in (find_answer_positions(messages) if steps is None else steps) if step in legal]
    before = [0, *accumulate(sizes)]
    target_tokens = [share * before[-1] for share in CUT_SHARES]
    cut_positions = (next((place for place in places if before[place] >= want), None) for want in target_tokens)
    return sorted({place for place in cut_positions if place is not None})


class SessionCut:
    """One cut of a session: its dependencies and all that scoring needs and that no policy changes.

    ``counter`` gives the tokens of budgets and of what is read again; ``frame`` are references that are background;
    ``steps`` are the positions of the model's answers (all assistant messages by default).
    """

    def __init__(
        self,
        messages: Sequence[Message],
        position: int,
        counter: TextCounter,
        setup_references: frozenset[Reference] = frozenset(),
        lookup: TextIndex | None = None,
        steps: Collection[int] | None = None,
    ) -> None:
        self.position = position
        self._lookup = lookup or TextIndex()
        self._counter = counter
        history = messages[:position]
        after = [m for i, m in enumerate(messages[position:], position) if _is_counted_message(m, i, steps)]
        source_texts = list(iter_history_texts(history))
        known_references = find_references((source.text for source in source_texts), self._lookup)
        self.dependencies = drop_background(self._find_needed_references(after, known_references), setup_references)
        """What the assistant will use, knew, and is not shown again: references, sorted."""
        self._said = self._group_by_reference(source_texts)
        self._results = ResultIndex(history, self.dependencies, self._lookup, counter)
        self._future: gain.FutureText | None = None
        self._has_gain = True
        try:
            self._future = gain.make_future(history, after)
        except MEMORY_ERRORS:
            self._has_gain = False
        self._oracles: dict[int, int] = {}

    def _find_needed_references(
        self, later_messages: Sequence[Message], known_references: set[Reference]
    ) -> set[Reference]:
        """Return what the next steps use for the first time, was known, and was not shown again before."""
        used: set[Reference] = set()
        shown_references: set[Reference] = set()
        needed_references: set[Reference] = set()
        steps = 0
        for message in later_messages:
            if message.role != "assistant":
                shown_references |= find_references(iter_reference_texts(message), self._lookup)
                continue
            steps += 1
            if steps > HORIZON_STEPS:
                break
            new = find_references(iter_used_texts(message), self._lookup) - used
            used |= new
            needed_references |= (new & known_references) - shown_references
        return needed_references

    def _group_by_reference(self, texts: Sequence[HistoryText]) -> dict[Reference, list[HistoryText]]:
        """Return what was said of each dependency, newest first."""
        sources_by_reference: dict[Reference, list[HistoryText]] = {ref: [] for ref in self.dependencies}
        for source in reversed(texts):
            for ref in self._lookup.get_references(source.text) & sources_by_reference.keys():
                sources_by_reference[ref].append(source)
        return sources_by_reference

    def score_context(self, context: Sequence[Message], budget: int | None = None) -> CutScore:
        """Return what ``context`` keeps; with a ``budget`` in tokens, beside what the oracle keeps in it."""
        texts = [text for message in context for text in iter_reference_texts(message)]
        lookup = self._lookup
        texts_by_reference = {
            ref: [text for text in texts if ref in lookup.get_references(text)] for ref in self.dependencies
        }
        origins = [
            (ref, self._find_kept_source(ref, kept_texts))
            for ref, kept_texts in texts_by_reference.items()
            if kept_texts
        ]
        dated_sources = [
            (source, paths) for ref, source in origins if source and (paths := self._get_source_paths(source, ref))
        ]
        missing = [ref for ref, kept_texts in texts_by_reference.items() if not kept_texts]
        reread = self._results.count_reachable(missing, context, texts)
        score = CutScore(
            dependencies=len(texts_by_reference),
            kept_names=len(origins),
            kept_facts=sum(source is not None for _, source in origins),
            reachable=len(origins) + reread.reference_count,
            reread_tokens=reread.tokens,
            dated_facts=len(dated_sources),
            stale=sum(self._results.is_edited_after(paths, source.position) for source, paths in dated_sources),
        )
        return self._add_oracle(self._add_gain(score, context), budget)

    def _add_gain(self, score: CutScore, context: Sequence[Message]) -> CutScore:
        """Add what a compressor gains by ``context``; compressing with a long history takes hundreds of megabytes."""
        if not self._has_gain:
            return replace(score, without_gain=1)
        if self._future is None:
            return score
        try:
            return replace(
                score,
                saved_bytes=self._future.count_saved_bytes(gain.join_messages(context)),
                max_saved=self._future.max_saved,
            )
        except MEMORY_ERRORS:
            return replace(score, without_gain=1)

    def _add_oracle(self, score: CutScore, budget: int | None) -> CutScore:
        if budget is None:
            return score
        try:
            return replace(score, oracle=self.count_oracle_kept(budget))
        except MEMORY_ERRORS:
            return replace(score, without_oracle=1)

    def _find_kept_source(self, ref: Reference, kept_texts: list[str]) -> HistoryText | None:
        """Return the newest place of the history whose evidence of ``ref`` the context keeps."""
        for source in self._said[ref]:
            if any(self._lookup.score_agreement(source.text, text, ref) >= KEPT_SCORE for text in kept_texts):
                return source
        return None

    def _get_source_paths(self, source: HistoryText, ref: Reference) -> set[Reference]:
        """Return the paths that a line belongs to: those in it, and those of the call that showed it."""
        inside = find_references(iter_excerpts(source.text, ref), self._lookup)
        return {path for path in inside if path[0] == "path"} | source.paths

    def count_oracle_kept(self, budget: int) -> int:
        """Return how many dependencies lines of the history keep that were chosen with knowledge of the future."""
        if budget not in self._oracles:
            texts_by_reference = {ref: [source.text for source in places] for ref, places in self._said.items()}
            lines = "\n".join(choose_oracle_lines(texts_by_reference, budget, self._counter, self._lookup))
            kept_flags = [self._lookup.is_kept(ref, texts, [lines]) for ref, texts in texts_by_reference.items()]
            self._oracles[budget] = sum(kept_flags)
        return self._oracles[budget]


def _is_counted_message(message: Message, position: int, steps: Collection[int] | None) -> bool:
    """Return whether a message counts behind a cut: everybody's but an assistant's that is no step."""
    return message.role != "assistant" or steps is None or position in steps


# -- handles -----------------------------------------------------------------------------------------------------------


class HistoryText(Struct, frozen=True):
    """A text of the history: where it stood, and the paths of the call that it belongs to."""

    text: str
    position: int
    paths: frozenset[Reference] = frozenset()


class RereadCost(Struct, frozen=True):
    """How many references handles lead to, and the tokens of the results behind them, each counted once."""

    reference_count: int = 0
    tokens: int = 0


class _SessionResult(Struct, frozen=True):
    id: str
    blob: str
    paths: frozenset[Reference]
    text: str


def find_call_paths(call: ToolCall) -> frozenset[Reference]:
    """Return the paths a call names in its short arguments (bare file names where it names no path)."""
    texts = list(iter_json_strings(decode_call_arguments(call)))
    all_references = [ref for text in texts if len(text) <= MAX_ARGUMENT_LENGTH for ref in extract_references(text)]
    if _EDIT_TOOL_NAME.search(call.name):
        all_references += [
            ref for text in texts for path in _PATCHED_PATH.findall(text) for ref in extract_references(path)
        ]
    paths = frozenset(ref for ref in all_references if ref[0] == "path")
    return paths or frozenset(ref for ref in all_references if ref[0] == "file")


def iter_history_texts(history: Sequence[Message]) -> Iterator[HistoryText]:
    """Yield the texts of ``history`` in order, with the paths of the call that made or showed them."""
    paths: dict[str, frozenset[Reference]] = {}
    for position, message in enumerate(history):
        for part in message.parts:
            if isinstance(part, ToolCall):
                paths[part.id] = find_call_paths(part)
            own = paths.get(_get_call_id(part), frozenset())
            yield from (HistoryText(text, position, own) for text in iter_part_texts(part) if text)


def _get_call_id(part: Part) -> str:
    if isinstance(part, ToolCall):
        return part.id
    return part.call_id if isinstance(part, ToolResult) else ""


class ResultIndex:
    """The results of a history that held one of the ``wanted`` references, and the edits of files."""

    def __init__(
        self,
        history: Sequence[Message],
        wanted_references: Iterable[Reference],
        lookup: TextIndex,
        counter: TextCounter,
    ) -> None:
        self._lookup = lookup
        self._counter = counter
        self._tokens: dict[int, int] = {}
        self._edits: dict[Reference, int] = {}
        """The position of the newest edit of each path."""
        self._all: list[_SessionResult] = []
        self._holding: dict[Reference, list[int]] = defaultdict(list)
        self._index_history(history, frozenset(wanted_references))

    def _index_history(self, history: Sequence[Message], wanted_references: frozenset[Reference]) -> None:
        paths: dict[str, frozenset[Reference]] = {}
        for position, message in enumerate(history):
            for call in message.calls:
                paths[call.id] = find_call_paths(call)
                if _EDIT_TOOL_NAME.search(call.name):
                    self._edits.update(dict.fromkeys(paths[call.id], position))
            for result in message.results:
                self._add_result(result, paths.get(result.call_id, frozenset()), wanted_references)

    def _add_result(
        self, result: ToolResult, paths: frozenset[Reference], wanted_references: frozenset[Reference]
    ) -> None:
        whole = get_result_text(result)
        text = whole[:HANDLE_REACH]
        held_references = self._lookup.get_references(text) & wanted_references
        if not held_references:
            return
        blob = sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:BLOB_ID_DIGITS]
        for ref in held_references:
            self._holding[ref].append(len(self._all))
        self._all.append(_SessionResult(result.call_id, blob, paths, text))

    def is_edited_after(self, paths: Iterable[Reference], position: int) -> bool:
        """Return whether one of ``paths`` was edited behind ``position``."""
        return any(self._edits.get(path, -1) > position for path in paths)

    def count_reachable(
        self, missing: Iterable[Reference], context: Sequence[Message], texts: Sequence[str]
    ) -> RereadCost:
        """Return how many of ``missing`` a handle in the context leads to.

        ``texts`` are the words of ``context``. Of several results the one already read again is taken, else the
        shortest.
        """
        context_handles = _ContextHandles(context, texts, find_references(texts, self._lookup))
        reread_indexes: set[int] = set()
        reference_count = 0
        for ref in missing:
            candidates = [
                index for index in self._holding.get(ref, ()) if context_handles.is_reachable(self._all[index])
            ]
            reference_count += bool(candidates)
            if candidates and reread_indexes.isdisjoint(candidates):
                reread_indexes.add(min(candidates, key=self._count_result_tokens))
        return RereadCost(reference_count, sum(map(self._count_result_tokens, reread_indexes)))

    def _count_result_tokens(self, index: int) -> int:
        if index not in self._tokens:
            self._tokens[index] = self._counter(self._all[index].text)
        return self._tokens[index]


class _ContextHandles:
    """The handles that stand in a context."""

    def __init__(self, context: Sequence[Message], texts: Sequence[str], references: Collection[Reference]) -> None:
        self._ids = {_get_call_id(part) for message in context for part in message.parts} - {""}
        self._words = "\n".join(texts)
        self._found = references

    def is_reachable(self, result: _SessionResult) -> bool:
        """Return whether the call id, a path or the blob id of ``result`` stands in the context."""
        if result.id in self._ids or any(path in self._found for path in result.paths):
            return True
        return result.blob in self._words or (len(result.id) >= MIN_SEARCHED_ID and result.id in self._words)


# -- the oracle --------------------------------------------------------------------------------------------------------


def choose_oracle_lines(
    texts_by_reference: Mapping[Reference, Sequence[str]], budget: int, counter: TextCounter, lookup: TextIndex
) -> list[str]:
    """Return lines that hold as many of the references as a lazy greedy cover finds, within ``budget`` tokens.

    ``texts_by_reference`` holds for each reference the texts in which it stood, newest first.
    """
    covers = _find_candidate_lines(texts_by_reference, lookup)
    lines = list(covers)
    line_costs = [(covers[line], counter(line) + LINE_COST) for line in lines]
    return [
        lines[index]
        for index in sorted(select_max_coverage(line_costs, dict.fromkeys(texts_by_reference, 1.0), budget))
    ]


def _find_candidate_lines(
    texts_by_reference: Mapping[Reference, Sequence[str]], lookup: TextIndex
) -> dict[str, frozenset[Reference]]:
    """Return the lines worth choosing with the references each keeps as a fact."""
    references_by_line: dict[str, set[Reference]] = {}
    for ref, texts in texts_by_reference.items():
        lines = dict.fromkeys(line.strip() for text in texts for line in iter_excerpts(text, ref))
        for line in list(lines)[:MAX_WINDOWS]:
            references_by_line.setdefault(line, set()).add(ref)
    for line, refs in references_by_line.items():
        refs |= {
            ref
            for ref in lookup.get_references(line) & texts_by_reference.keys()
            if lookup.is_kept(ref, texts_by_reference[ref], [line])
        }
    return {line: frozenset(refs) for line, refs in references_by_line.items()}


# -- figures -----------------------------------------------------------------------------------------------------------


class RecallFigures(Struct, frozen=True):
    """What METRICS calls "Recall, at cuts"; a share of nothing is nothing."""

    dependencies: int
    fact_recall: float | None
    name_recall: float | None
    handle_recall: float | None
    reread_tokens: int
    z_gain: float | None
    stale: float | None
    oracle: float | None


def pool_scores(scores: Iterable[CutScore]) -> RecallFigures:
    """Return the figures of ``scores`` together: micro-averages over dependencies, lines and bytes."""
    total = sum(scores, CutScore())
    return RecallFigures(
        dependencies=total.dependencies,
        fact_recall=_compute_share(total.kept_facts, total.dependencies),
        name_recall=_compute_share(total.kept_names, total.dependencies),
        handle_recall=_compute_share(total.reachable, total.dependencies),
        reread_tokens=total.reread_tokens,
        z_gain=None if total.without_gain else _compute_share(total.saved_bytes, total.max_saved),
        stale=_compute_share(total.stale, total.dated_facts),
        oracle=None if total.without_oracle else _compute_share(total.oracle, total.dependencies),
    )


def _compute_share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def compute_interval(sessions: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a micro-average over sessions, each given as (kept, dependencies).

    Cuts of one session are not independent, so whole sessions are drawn. Nothing without dependencies.
    """
    pairs = [pair for pair in sessions if pair[1] > 0]
    if not pairs:
        return None
    draw = random.Random(BOOTSTRAP_SEED)  # noqa: S311 - resampling, not a secret
    shares = sorted(_compute_micro_average(draw.choices(pairs, k=len(pairs))) for _ in range(BOOTSTRAP_ROUNDS))
    edge = (1 - CONFIDENCE_LEVEL) / 2
    return shares[int(edge * BOOTSTRAP_ROUNDS)], shares[min(BOOTSTRAP_ROUNDS - 1, int((1 - edge) * BOOTSTRAP_ROUNDS))]


def _compute_micro_average(pairs: Iterable[tuple[int, int]]) -> float:
    kept_count, total = map(sum, zip(*pairs, strict=True))
    return kept_count / total
