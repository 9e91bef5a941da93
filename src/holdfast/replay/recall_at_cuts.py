"""Recall at cuts: how much of what the agent will use a context of a given size keeps.

A session is cut at four places, and a context is a request that a policy sends at a cut. The words of this module:

- A *step* is one answer of the model. The steps after a cut are the future that the context is scored by.
- A *reference* is a path, an identifier or another name in a text.
- A *dependency* of a cut is a reference that one of the next ``HORIZON_STEPS`` steps uses, that the messages before the
  cut contain, and that no message in between shows again. The context should contain it.
- It is kept *by name* if any text of the context contains it, and *as a fact* if the context also keeps a line of the
  history around it, the evidence.
- A *handle* is a path, blob id or call id in the context from which the model can read a missing reference again.
- The *oracle* shows about what is possible at best: lines of the history, chosen with knowledge of the dependencies,
  that keep as many of them as facts as the same number of tokens allows.

Scores are counts, so that they add up over cuts and sessions; ``pool_scores`` computes the figures of a report from
them.
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
from holdfast.planning.extract.max_coverage import PlainCandidate, select_max_coverage
from holdfast.replay import conditional_compression as gain
from holdfast.replay.evidence import KEPT_SCORE, TextIndex, iter_excerpts
from holdfast.replay.recall import drop_background, find_answer_positions, find_references, iter_used_texts
from holdfast.replay.tokenizer import TextCounter

CUT_SHARES = (0.40, 0.55, 0.70, 0.85)
"""Where a session is cut, as shares of its tokens (docs/metrics.md, "Recall at cuts")."""
MIN_SESSION_TOKENS = 25_000
"""Tokens below which a session is not cut (docs/metrics.md, "Recall at cuts")."""
HORIZON_STEPS = 30
"""Steps after a cut in which a first use counts (docs/metrics.md, "Recall at cuts")."""
HANDLE_REACH = 50_000
"""Characters of a result that one handle stands for (docs/metrics.md, ``handle_recall``)."""
MAX_ARGUMENT_LENGTH = 400
"""Length up to which an argument says what to act on; longer ones are content. Chosen by judgement."""
BLOB_ID_DIGITS = 12
"""Hexadecimal digits of a SHA-256 by which the model knows a spilled text."""
MIN_SEARCHED_ID = 6
"""Length from which a call id is also searched for in texts; a shorter one would match by chance."""

_EDIT_TOOL_NAME = re.compile(r"edit|write|patch", re.IGNORECASE)
_PATCHED_PATH = re.compile(r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(\S+)", re.MULTILINE)
MAX_WINDOWS = 40
"""Evidence windows considered for each reference, newest first (docs/metrics.md, ``oracle``)."""
LINE_COST = 1
"""Tokens that a line costs beside its text: the line break."""
BOOTSTRAP_ROUNDS = 1_000
"""Resamples of the bootstrap; 25 of them lie outside of the interval at either end."""
CONFIDENCE_LEVEL = 0.95
"""Share of the resamples within the interval."""
MEMORY_ERRORS = (MemoryError, RecursionError, ZstdError)
"""Errors that end the computation of a figure on a small machine; zstd reports lack of memory as its own error."""
BOOTSTRAP_SEED = 20_251_121
"""Fixed, so that the same report comes out each time."""


class CutScore(Struct, frozen=True):
    """Counts for one context at one cut, or sums of such counts."""

    dependencies: int = 0
    kept_names: int = 0
    """Dependencies that the context contains by name."""
    kept_facts: int = 0
    """Dependencies that the context contains with evidence."""
    reachable: int = 0
    """Dependencies that the context contains by name, or that are in a result to which one of its handles leads."""
    reread_tokens: int = 0
    """Tokens of the results that the model would have to read again to reach those behind handles."""
    dated_facts: int = 0
    """Kept facts whose evidence belongs to a file: it names a path, or the call that showed it does."""
    stale: int = 0
    """Dated facts whose file was edited after the evidence was shown, so that it may no longer be true."""
    saved_bytes: int = 0
    """Bytes that the context saves in compressing the future."""
    max_saved: int = 0
    """Bytes that the whole history saves."""
    oracle: int = 0
    """Dependencies that the oracle keeps within the same budget."""
    without_gain: int = 0
    """Number of cuts without ``z_gain``, because it could not be computed."""
    without_oracle: int = 0
    """Number of cuts without an oracle, because it could not be computed."""

    def __add__(self, other: CutScore) -> CutScore:
        return CutScore(*[getattr(self, field.name) + getattr(other, field.name) for field in fields(self)])


def find_cut_positions(
    messages: Sequence[Message],
    sizes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> list[int]:
    """Return the message positions at which to cut a session, one for each of ``CUT_SHARES``.

    A cut is at the first step after its share of the tokens at which a compaction could cut too. ``sizes`` are the
    tokens of the messages, ``steps`` the positions of the model's answers (by default all assistant messages). A
    session under ``MIN_SESSION_TOKENS`` has no cuts, and two shares may lead to the same cut.
    """
    if sum(sizes) < MIN_SESSION_TOKENS:
        return []
    legal_positions = set(find_cut_points(messages))
    all_steps = find_answer_positions(messages) if steps is None else steps
    legal_steps = [step for step in all_steps if step in legal_positions]
    tokens_before = [0, *accumulate(sizes)]
    cut_positions: set[int] = set()
    for share in CUT_SHARES:
        for step in legal_steps:
            if tokens_before[step] >= share * tokens_before[-1]:
                cut_positions.add(step)
                break
    return sorted(cut_positions)


class SessionCut:
    """One cut of a session: its dependencies, and everything for scoring that does not depend on a policy.

    ``counter`` counts the tokens of budgets and of what is read again; ``setup_references`` count as background;
    ``steps`` are the positions of the model's answers (by default all assistant messages).
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
        later_messages: list[Message] = []
        for index, message in enumerate(messages[position:], position):
            if _is_counted_message(message, index, steps):
                later_messages.append(message)
        source_texts = list(iter_history_texts(history))
        known_references = find_references((source.text for source in source_texts), self._lookup)
        needed_references = self._find_needed_references(later_messages, known_references)
        self.dependencies = drop_background(needed_references, setup_references)
        """References that the assistant will use, knew, and is not shown again; sorted."""
        self._sources_by_reference = self._group_by_reference(source_texts)
        self._results = ResultIndex(history, self.dependencies, self._lookup, counter)
        self._future: gain.FutureText | None = None
        self._has_gain = True
        try:
            self._future = gain.make_future(history, later_messages)
        except MEMORY_ERRORS:
            self._has_gain = False
        self._oracles: dict[int, int] = {}

    def _find_needed_references(
        self,
        later_messages: Sequence[Message],
        known_references: set[Reference],
    ) -> set[Reference]:
        """Return the known references that the next steps use for the first time without being shown them again."""
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
            # Only the first use counts: after that the reference is in the assistant's own words.
            new = find_references(iter_used_texts(message), self._lookup) - used
            used |= new
            needed_references |= (new & known_references) - shown_references
        return needed_references

    def _group_by_reference(self, texts: Sequence[HistoryText]) -> dict[Reference, list[HistoryText]]:
        """Return the texts that contain each dependency, newest first."""
        sources_by_reference: dict[Reference, list[HistoryText]] = {ref: [] for ref in self.dependencies}
        for source in reversed(texts):
            for ref in self._lookup.get_references(source.text) & sources_by_reference.keys():
                sources_by_reference[ref].append(source)
        return sources_by_reference

    def score_context(self, context: Sequence[Message], budget: int | None = None) -> CutScore:
        """Score ``context``; with a ``budget`` in tokens, also count the facts that an oracle keeps within it."""
        texts: list[str] = []
        for message in context:
            texts += iter_reference_texts(message)
        missing: list[Reference] = []
        kept_facts = dated_facts = stale = 0
        for ref in self.dependencies:
            reference_texts = [text for text in texts if ref in self._lookup.get_references(text)]
            if not reference_texts:
                missing.append(ref)
                continue
            source = self._find_kept_source(ref, reference_texts)
            if source is None:
                continue
            kept_facts += 1
            paths = self._get_source_paths(source, ref)
            if paths:
                dated_facts += 1
                stale += self._results.is_edited_after(paths, source.position)
        kept_names = len(self.dependencies) - len(missing)
        reread = self._results.count_reachable(missing, context, texts)
        score = CutScore(
            dependencies=len(self.dependencies),
            kept_names=kept_names,
            kept_facts=kept_facts,
            reachable=kept_names + reread.reference_count,
            reread_tokens=reread.tokens,
            dated_facts=dated_facts,
            stale=stale,
        )
        return self._add_oracle(self._add_gain(score, context), budget)

    def _add_gain(self, score: CutScore, context: Sequence[Message]) -> CutScore:
        """Add the gain of a compressor by ``context``; with a long history that takes hundreds of megabytes."""
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
        """Return the newest text of the history that the context keeps as evidence of ``ref``, or None."""
        for source in self._sources_by_reference[ref]:
            for text in kept_texts:
                if self._lookup.score_agreement(source.text, text, ref) >= KEPT_SCORE:
                    return source
        return None

    def _get_source_paths(self, source: HistoryText, ref: Reference) -> set[Reference]:
        """Return the paths that a line belongs to: those in it, and those of the call that showed it."""
        references = find_references(iter_excerpts(source.text, ref), self._lookup)
        return {reference for reference in references if reference[0] == "path"} | source.paths

    def count_oracle_kept(self, budget: int) -> int:
        """Return how many dependencies are kept by lines chosen with knowledge of the future, within ``budget``."""
        if budget not in self._oracles:
            texts_by_reference: dict[Reference, list[str]] = {}
            for ref, sources in self._sources_by_reference.items():
                texts_by_reference[ref] = [source.text for source in sources]
            lines = choose_oracle_lines(texts_by_reference, budget, self._counter, self._lookup)
            context = ["\n".join(lines)]
            kept_count = 0
            for ref, texts in texts_by_reference.items():
                kept_count += self._lookup.is_kept(ref, texts, context)
            self._oracles[budget] = kept_count
        return self._oracles[budget]


def _is_counted_message(message: Message, position: int, steps: Collection[int] | None) -> bool:
    """Return whether a message counts after a cut: any message except an assistant's that is not a step."""
    return message.role != "assistant" or steps is None or position in steps


# -- handles -----------------------------------------------------------------------------------------------------------


class HistoryText(Struct, frozen=True):
    """A text of the history: its message's position, and the paths of the call that it belongs to."""

    text: str
    position: int
    paths: frozenset[Reference] = frozenset()


class RereadCost(Struct, frozen=True):
    """How many references handles lead to, and the tokens of the results behind them, each counted once."""

    reference_count: int = 0
    tokens: int = 0


class _SessionResult(Struct, frozen=True):
    """A tool result that contains a wanted reference, and everything that may stand for it in a context."""

    id: str
    blob: str
    paths: frozenset[Reference]
    text: str


def find_call_paths(call: ToolCall) -> frozenset[Reference]:
    """Return the paths that a call names in its short arguments, or the bare file names if it names no path."""
    texts = list(iter_json_strings(decode_call_arguments(call)))
    references: list[Reference] = []
    for text in texts:
        if len(text) <= MAX_ARGUMENT_LENGTH:
            references += extract_references(text)
    # A patch is one long argument; the files it changes are in its headers.
    if _EDIT_TOOL_NAME.search(call.name):
        for text in texts:
            for path in _PATCHED_PATH.findall(text):
                references += extract_references(path)
    paths = frozenset(ref for ref in references if ref[0] == "path")
    return paths or frozenset(ref for ref in references if ref[0] == "file")


def iter_history_texts(history: Sequence[Message]) -> Iterator[HistoryText]:
    """Yield the texts of ``history`` in order, each with the paths of the call that made or showed it."""
    paths: dict[str, frozenset[Reference]] = {}
    for position, message in enumerate(history):
        for part in message.parts:
            if isinstance(part, ToolCall):
                paths[part.id] = find_call_paths(part)
            call_paths = paths.get(_get_call_id(part), frozenset())
            for text in iter_part_texts(part):
                if text:
                    yield HistoryText(text, position, call_paths)


def _get_call_id(part: Part) -> str:
    if isinstance(part, ToolCall):
        return part.id
    if isinstance(part, ToolResult):
        return part.call_id
    return ""


class ResultIndex:
    """The results of a history that contain wanted references, and the edits of files."""

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
        self._last_edits: dict[Reference, int] = {}
        """Position of the newest edit of each path."""
        self._results: list[_SessionResult] = []
        self._indexes_by_reference: dict[Reference, list[int]] = defaultdict(list)
        """Indexes of the results that contain a reference."""
        self._index_history(history, frozenset(wanted_references))

    def _index_history(self, history: Sequence[Message], wanted_references: frozenset[Reference]) -> None:
        paths: dict[str, frozenset[Reference]] = {}
        for position, message in enumerate(history):
            for call in message.calls:
                paths[call.id] = find_call_paths(call)
                if _EDIT_TOOL_NAME.search(call.name):
                    self._last_edits.update(dict.fromkeys(paths[call.id], position))
            for result in message.results:
                self._add_result(result, paths.get(result.call_id, frozenset()), wanted_references)

    def _add_result(
        self,
        result: ToolResult,
        paths: frozenset[Reference],
        wanted_references: frozenset[Reference],
    ) -> None:
        full_text = get_result_text(result)
        text = full_text[:HANDLE_REACH]
        references = self._lookup.get_references(text) & wanted_references
        if not references:
            return
        blob_id = sha256(full_text.encode("utf-8", "surrogatepass")).hexdigest()[:BLOB_ID_DIGITS]
        for ref in references:
            self._indexes_by_reference[ref].append(len(self._results))
        self._results.append(_SessionResult(result.call_id, blob_id, paths, text))

    def is_edited_after(self, paths: Iterable[Reference], position: int) -> bool:
        """Return whether one of ``paths`` was edited after ``position``."""
        return any(self._last_edits.get(path, -1) > position for path in paths)

    def count_reachable(
        self,
        missing: Iterable[Reference],
        context: Sequence[Message],
        texts: Sequence[str],
    ) -> RereadCost:
        """Return to how many of ``missing`` a handle in the context leads, and the tokens that must be read for them.

        ``texts`` are the texts of ``context``. If several results contain a reference, one that is read again anyway is
        used, else the shortest.
        """
        handles = _ContextHandles(context, texts, find_references(texts, self._lookup))
        reread_indexes: set[int] = set()
        reference_count = 0
        for ref in missing:
            indexes = self._indexes_by_reference.get(ref, ())
            candidates = [index for index in indexes if handles.is_reachable(self._results[index])]
            if not candidates:
                continue
            reference_count += 1
            if reread_indexes.isdisjoint(candidates):
                reread_indexes.add(min(candidates, key=self._count_result_tokens))
        return RereadCost(reference_count, sum(map(self._count_result_tokens, reread_indexes)))

    def _count_result_tokens(self, index: int) -> int:
        if index not in self._tokens:
            self._tokens[index] = self._counter(self._results[index].text)
        return self._tokens[index]


class _ContextHandles:
    """The handles in a context: call ids, paths and blob ids."""

    def __init__(
        self,
        context: Sequence[Message],
        texts: Sequence[str],
        references: Collection[Reference],
    ) -> None:
        self._call_ids: set[str] = set()
        for message in context:
            self._call_ids.update(_get_call_id(part) for part in message.parts)
        self._call_ids.discard("")  # of parts that belong to no call
        self._joined_texts = "\n".join(texts)
        self._references = references

    def is_reachable(self, result: _SessionResult) -> bool:
        """Return whether the call id, a path or the blob id of ``result`` is in the context."""
        if result.id in self._call_ids or any(path in self._references for path in result.paths):
            return True
        if result.blob in self._joined_texts:
            return True
        return len(result.id) >= MIN_SEARCHED_ID and result.id in self._joined_texts


# -- the oracle --------------------------------------------------------------------------------------------------------


def choose_oracle_lines(
    texts_by_reference: Mapping[Reference, Sequence[str]],
    budget: int,
    counter: TextCounter,
    lookup: TextIndex,
) -> list[str]:
    """Return the lines of the oracle: those that keep the most references as facts within ``budget`` tokens.

    They are chosen greedily, always the line with the most new references for its tokens; the exact optimum would take
    too long. ``texts_by_reference`` has the texts that contain each reference, newest first.
    """
    # All references weigh the same; the cost of a line is its length.
    references_by_line = _find_candidate_lines(texts_by_reference, lookup)
    lines = list(references_by_line)
    candidates = [PlainCandidate(refs, counter(line) + LINE_COST) for line, refs in references_by_line.items()]
    equal_weights = dict.fromkeys(texts_by_reference, 1.0)
    chosen_indexes = select_max_coverage(candidates, equal_weights, budget)
    return [lines[index] for index in sorted(chosen_indexes)]


def _find_candidate_lines(
    texts_by_reference: Mapping[Reference, Sequence[str]], lookup: TextIndex
) -> dict[str, frozenset[Reference]]:
    """Return the lines worth choosing, each with the references that it keeps as facts."""
    references_by_line: dict[str, set[Reference]] = {}
    for ref, texts in texts_by_reference.items():
        lines: dict[str, None] = {}
        for text in texts:
            lines.update(dict.fromkeys(line.strip() for line in iter_excerpts(text, ref)))
        for line in list(lines)[:MAX_WINDOWS]:
            references_by_line.setdefault(line, set()).add(ref)
    # A line chosen for one reference may keep others too.
    for line, references in references_by_line.items():
        for ref in lookup.get_references(line) & texts_by_reference.keys():
            if lookup.is_kept(ref, texts_by_reference[ref], [line]):
                references.add(ref)
    return {line: frozenset(references) for line, references in references_by_line.items()}


# -- figures -----------------------------------------------------------------------------------------------------------


class RecallFigures(Struct, frozen=True):
    """The figures that docs/metrics.md defines under "Recall at cuts"; a share of 0 is None."""

    dependencies: int
    fact_recall: float | None
    name_recall: float | None
    handle_recall: float | None
    reread_tokens: int
    z_gain: float | None
    stale: float | None
    oracle: float | None


def pool_scores(scores: Iterable[CutScore]) -> RecallFigures:
    """Return the figures of all ``scores`` together: micro-averages over dependencies, lines and bytes."""
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

    Whole sessions are drawn, since cuts of one session are not independent. Return None without dependencies.
    """
    pairs = [pair for pair in sessions if pair[1] > 0]
    if not pairs:
        return None
    generator = random.Random(BOOTSTRAP_SEED)  # noqa: S311 - resampling, not a secret
    shares = []
    for _ in range(BOOTSTRAP_ROUNDS):
        resample = generator.choices(pairs, k=len(pairs))
        shares.append(_compute_micro_average(resample))
    shares.sort()
    edge_share = (1 - CONFIDENCE_LEVEL) / 2
    low = int(edge_share * BOOTSTRAP_ROUNDS)
    high = min(BOOTSTRAP_ROUNDS - 1, int((1 - edge_share) * BOOTSTRAP_ROUNDS))
    return shares[low], shares[high]


def _compute_micro_average(pairs: Iterable[tuple[int, int]]) -> float:
    kept_count = total = 0
    for kept, dependencies in pairs:
        kept_count += kept
        total += dependencies
    return kept_count / total
