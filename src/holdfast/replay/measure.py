"""Measure the requests of one policy over one session: what they cost, and what they lost."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import takewhile
from statistics import quantiles
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.pipeline import Policy
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.replay.cache import (
    SETUP_BREAKPOINT,
    CacheBlock,
    CacheUse,
    SimulatedCache,
    compute_read_share,
    make_cache_blocks,
    price_request,
)
from holdfast.replay.recall import NeedOutcome, RecallCounts, StepDependencies, count_outcomes
from holdfast.replay.recall_at_cuts import MEMORY_ERRORS, CutScore, SessionCut, find_cut_positions, pool_scores
from holdfast.replay.session import ReplaySession
from holdfast.replay.simulate import ProviderTokenCounter, SimulatedRequest, simulate_session
from holdfast.replay.tokenizer import TextCounter
from holdfast.replay.written_summaries import ModelSummaries
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, RequestSetup
from holdfast.state.plan import Plan
from holdfast.state.target import Target

CUT_BUDGETS = (4_000, 8_000, 16_000)
"""Budgets in tokens at which contexts are scored (docs/metrics.md, "Recall at cuts")."""
MAX_RESERVE = 20_000
"""usable = window - min(20,000, window / 4) (docs/metrics.md, ``over_window``)."""
MEASURE_ERRORS = (HoldfastError, *MEMORY_ERRORS)
"""Errors that may prevent one figure; the other figures of the row are still reported."""
COMPACTION_GAP_NOTE = "fewest steps between compactions"
"""Beginning of a note that every policy has which compacts twice."""


NeedWatcher: TypeAlias = Callable[[SimulatedRequest, Sequence[NeedOutcome]], Any]
"""Gets each request, and what became of the facts that the answer to it needs."""


class MeasurementSettings(Struct, frozen=True):
    """The settings of a replay, apart from session and policy."""

    window: int
    setup_tokens: int
    """Tokens of system prompt and tools."""
    target: Target
    """The target for ``window``. Its limits are replaced for figures with another window."""
    tokenizer: str
    counter: TextCounter


class RequestPoint(Struct, frozen=True):
    """One request, as the picture shows it."""

    step: int
    tokens: int
    kinds: dict[str, int]
    """Tokens of the messages by kind: user, assistant, thinking, results, summary, stubs, media."""
    hit: CacheUse
    usd: float
    event: str = ""


class SummaryFigures(Struct, frozen=True):
    """What a model did for the summaries of one policy. Tokens are as the provider reported them."""

    written: int = 0
    """Summaries that were accepted."""
    failed: int = 0
    """Summaries in whose place an extract was made."""
    calls: int = 0
    """Answered calls; a rejected summary is asked for again."""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    """Their cost, which is part of the policy's."""

    def __add__(self, other: SummaryFigures) -> SummaryFigures:
        return SummaryFigures(
            self.written + other.written,
            self.failed + other.failed,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.usd + other.usd,
        )


class PolicyFigures(Struct, frozen=True):
    """All figures of one policy over one session; the JSON is without ``points``."""

    policy: str
    requests: int
    invalid_requests: int
    over_window: int
    refused_requests: int
    """Requests that are invalid or over the window; one that is both counts once."""
    user_words_missing: int
    tokens_sum: int
    tokens_peak: int
    cache_hit: float | None
    usd: float
    online: RecallCounts
    mutations: int
    compactions: int
    policy_ms_p50: float
    policy_ms_p95: float
    notes: tuple[str, ...]
    points: tuple[RequestPoint, ...] = ()
    summaries: SummaryFigures | None = None
    """What the summaries of a model cost; None if no model was asked."""
    is_priced: bool = True
    """Whether the prices of the model are known; if not, ``usd`` is 0 and means nothing."""

    @property
    def cost(self) -> float | None:
        """The cost in dollars, or None if the prices are unknown."""
        return self.usd if self.is_priced else None


class SessionStudy:
    """One session prepared for measuring: everything that does not depend on a policy is computed once."""

    def __init__(self, session: ReplaySession, setting: MeasurementSettings) -> None:
        self.session = session
        self.setting = setting
        self.factor = session.compute_factor(setting.counter)
        self.messages: list[Message] = [sized_message.message for sized_message in session.messages]
        self.steps = [step.index for step in session.steps]
        self.dependencies = StepDependencies(self.messages, self.steps)
        self._blocks_by_digest: dict[bytes, list[CacheBlock]] = {}
        self._cuts: list[SessionCut] | None = None

    def get_blocks(self, message: SizedMessage) -> list[CacheBlock]:
        """Return the cache blocks of a message as sent, in the tokens of the judge."""
        message_blocks = self._blocks_by_digest.get(message.digest)
        if message_blocks is None:
            uncalibrated_blocks = make_cache_blocks(message.message, self.setting.counter)
            message_blocks = [(digest, round(self.factor * tokens)) for digest, tokens in uncalibrated_blocks]
            self._blocks_by_digest[message.digest] = message_blocks
        return message_blocks

    def count_message(self, message: SizedMessage) -> int:
        """Return the tokens of a message as sent, by the judge."""
        return sum(tokens for _, tokens in self.get_blocks(message))

    def count_text(self, text: str) -> int:
        """Return the tokens of a text, by the judge."""
        return round(self.factor * self.setting.counter(text))

    def count_system_tokens(self) -> int:
        """Return the tokens of the system messages that the session begins with, by the judge."""
        system_messages = takewhile(lambda message: message.message.role == "system", self.session.messages)
        return sum(map(self.count_message, system_messages))

    def get_cuts(self) -> list[SessionCut]:
        """Return the cuts of the session, made at the first call."""
        if self._cuts is None:
            sizes = [self.count_message(sized_message) for sized_message in self.session.messages]
            # One index for all cuts: they share most of their texts.
            lookup = self.dependencies.lookup
            cuts = []
            for position in find_cut_positions(self.messages, sizes, self.steps):
                cuts.append(SessionCut(self.messages, position, self.count_text, lookup=lookup, steps=self.steps))
            self._cuts = cuts
        return self._cuts


def compute_usable_window(window: int) -> int:
    """Return how many tokens of a window a request may use."""
    return window - min(MAX_RESERVE, window // 4)


def compute_window_for_budget(budget: int, setup_tokens: int) -> int:
    """Return the smallest window with room for ``setup_tokens`` and ``budget`` in its usable part."""
    needed_tokens = budget + setup_tokens
    # A quarter of the window is a third of what is usable, rounded up; rounding may still leave it a little short.
    window = needed_tokens + min(MAX_RESERVE, -(-needed_tokens // 3))
    while compute_usable_window(window) < needed_tokens:
        window += 1
    return window


def simulate_requests(
    study: SessionStudy,
    policy: Policy,
    target: Target,
    summaries: ModelSummaries | None = None,
) -> Iterator[SimulatedRequest]:
    """Yield the requests of ``policy`` over the session, planned for ``target``."""
    judge = ProviderTokenCounter(study.count_message, study.setting.setup_tokens)
    return simulate_session(study.session, policy, target, judge, summaries)


def make_target_at_cuts(setting: MeasurementSettings, budget: int, system_tokens: int = 0) -> Target:
    """Return the target of a run that is scored at cuts: its window leaves ``budget`` tokens for messages.

    System messages at the beginning, ``system_tokens`` together, are the system prompt of their tool and not part of
    the budget. Nobody chose that window, so errors name its purpose as the source.
    """
    window = compute_window_for_budget(budget, setting.setup_tokens + system_tokens)
    return change_target_window(
        setting.target,
        window,
        setting.setup_tokens,
        f"made for {budget:,} tokens of messages",
    )


def change_target_window(
    target: Target,
    window: int,
    setup_tokens: int,
    origin: str = "--window",
) -> Target:
    """Return ``target`` with another window and setup; messages name ``origin`` as the source of the window."""
    return replace(
        target,
        limits=replace(target.limits, window=window, window_source=origin),
        setup=RequestSetup("replay", setup_tokens, is_exact=True),
    )


def measure_policy(
    study: SessionStudy,
    policy: Policy,
    tick: Callable[[], Any] = lambda: None,
    keep: Callable[[int, bytes], Any] | None = None,
    summaries: ModelSummaries | None = None,
    watch_needs: NeedWatcher | None = None,
) -> PolicyFigures:
    """Measure ``policy`` over the session.

    ``tick`` is called after each request; ``keep`` gets the step and the body of each, ``watch_needs`` the request and
    what became of each fact that its answer needs. With ``summaries`` a model writes the summaries, and its calls are
    charged as they were.
    """
    setting = study.setting
    run = _PolicyRun(study, policy, keep, summaries, watch_needs)
    target = change_target_window(setting.target, setting.window, setting.setup_tokens)
    for simulated_request in simulate_requests(study, policy, target, summaries):
        run.add_request(simulated_request)
        tick()
    return run.make_figures()


class _PolicyRun:
    """Adds up the figures of one policy, request by request."""

    def __init__(
        self,
        study: SessionStudy,
        policy: Policy,
        keep: Callable[[int, bytes], Any] | None,
        summaries: ModelSummaries | None = None,
        watch_needs: NeedWatcher | None = None,
    ) -> None:
        self._study = study
        self._watch_needs = watch_needs
        self._summaries = summaries
        self._summary_figures = SummaryFigures()
        self._summary_failure = ""
        """Why the first summary that failed did."""
        self._policy = policy
        self._keep = keep
        self._cache = SimulatedCache(study.setting.target.cache_rules)
        self._usable_tokens = compute_usable_window(study.setting.window)
        self._last_blocks: list[CacheBlock] = []
        self._points: list[RequestPoint] = []
        self._seconds: list[float] = []
        self._notes: dict[str, int] = {}
        self._online = RecallCounts()
        self._invalid = self._missing = self._mutations = self._compactions = self._over = self._refused = 0
        self._first_unsummarized = 0
        """Index of the first message that no request had shown when the last compaction ran."""
        self._shown_count = 0
        """How many messages the previous request could show."""
        self._last_compaction: int | None = None
        """Number of the request with the last compaction."""
        self._shortest_gap: int | None = None
        """Fewest requests between two compactions."""

    def add_request(self, simulated_request: SimulatedRequest) -> None:
        study, plan = self._study, simulated_request.plan
        step_index = simulated_request.step.index
        if plan.compaction is not None:
            self._add_compaction(plan.compaction)
        body = self._render_body(simulated_request)
        findings = validate_request(body, study.setting.target.api)
        is_invalid = any(finding.level == "error" for finding in findings)
        is_over = simulated_request.tokens > self._usable_tokens
        self._invalid += is_invalid
        self._over += is_over
        self._refused += is_invalid or is_over
        if self._keep is not None:
            self._keep(step_index, body)
        texts: list[str] = []
        for sized_message in simulated_request.sized_messages:
            texts += study.dependencies.lookup.get_texts(sized_message)
        outcomes = study.dependencies.judge_request(step_index, texts)
        self._online += count_outcomes(outcomes)
        if self._watch_needs is not None:
            self._watch_needs(simulated_request, outcomes)
        self._missing += _count_missing_user_messages(plan.state, self._first_unsummarized, texts)
        self._seconds.append(simulated_request.seconds)
        for notice in plan.notices:
            self._notes[notice.rule] = self._notes.get(notice.rule, 0) + 1
        self._shown_count = step_index
        self._price_request(simulated_request)

    def _add_compaction(self, compaction: CompactionEntry) -> None:
        number = len(self._points)
        if self._last_compaction is not None:
            gap = number - self._last_compaction
            if self._shortest_gap is None:
                self._shortest_gap = gap
            else:
                self._shortest_gap = min(self._shortest_gap, gap)
        self._last_compaction = number
        self._compactions += 1
        # Without a summary nothing stands for the user's words, so they still count as missing.
        if compaction.summary is not None:
            self._first_unsummarized = self._shown_count

    def _render_body(self, simulated_request: SimulatedRequest) -> bytes:
        target = self._study.setting.target
        required_fields = {}
        if get_api_spec(target.api).options.requires_max_tokens:
            required_fields["max_tokens"] = MAX_RESERVE
        return build_request_body(
            target.api,
            target.model,
            simulated_request.sized_messages,
            setup_fields=required_fields,
            options=simulated_request.plan.options,
        )

    def _price_request(self, simulated_request: SimulatedRequest) -> None:
        study = self._study
        blocks, breakpoints = build_cache_request(study, simulated_request.sized_messages, simulated_request.plan)
        is_extension = self._last_blocks == blocks[: len(self._last_blocks)]
        # A request that only appends keeps the provider's cache; any other one breaks it.
        self._mutations += not is_extension
        self._last_blocks = blocks
        setup_block = (b"frame", study.setting.setup_tokens)
        # The call for a summary is sent before the request, and warms the cache for it.
        usd = self._price_summary_call(simulated_request, setup_block)
        cache_use = self._cache.send_request(blocks, setup_block, breakpoints, simulated_request.step.at)
        output = study.count_message(study.session.messages[simulated_request.step.index])
        usd += self._price_call(cache_use, output)
        self._points.append(
            RequestPoint(
                step=simulated_request.step.index,
                tokens=simulated_request.tokens,
                kinds=_count_tokens_by_kind(study, simulated_request),
                hit=cache_use,
                usd=usd,
                event=_name_request_event(simulated_request),
            )
        )

    def _price_summary_call(self, simulated_request: SimulatedRequest, setup_block: CacheBlock) -> float:
        """Return the cost of the call for a model's summary, if the policy would have made one."""
        if self._summaries is not None:
            return self._charge_written_summary(simulated_request, self._summaries)
        compaction = simulated_request.plan.compaction
        if not self._policy.rules.model_writes_summaries or compaction is None or compaction.summary is None:
            return 0.0
        blocks: list[CacheBlock] = []
        for sized_message in simulated_request.before_compaction:
            blocks += self._study.get_blocks(sized_message)
        cache_use = self._cache.send_request(
            blocks,
            setup_block,
            [len(blocks) - 1],
            simulated_request.step.at,
        )
        # Only the first part is what a model would have written; behind it are files that were read again.
        summary_part = compaction.summary.parts[0]
        output = 0
        if isinstance(summary_part, Text):
            output = self._study.count_text(summary_part.text)
        return self._price_call(cache_use, output)

    def _charge_written_summary(self, simulated_request: SimulatedRequest, summaries: ModelSummaries) -> float:
        """Count what a model was asked for, and return the cost of its calls by their reported usage."""
        written_summary = simulated_request.written_summary
        if written_summary is None:
            return 0.0
        usd = summaries.price_calls(written_summary.calls)
        self._summary_failure = self._summary_failure or written_summary.failure
        self._summary_figures += SummaryFigures(
            written=int(written_summary.result is not None),
            failed=int(written_summary.result is None),
            calls=len(written_summary.calls),
            input_tokens=sum(call.usage.input for call in written_summary.calls),
            output_tokens=sum(call.usage.output for call in written_summary.calls),
            usd=usd,
        )
        return usd

    def _price_call(self, cache_use: CacheUse, output: int) -> float:
        """Return the cost of a call, or 0 if the prices are unknown."""
        prices = self._study.setting.target.prices
        return 0.0 if prices.is_assumed else price_request(cache_use, output, prices)

    def _has_assumed_prices(self) -> bool:
        """Return whether the prices of a model that was called are not known."""
        if self._study.setting.target.prices.is_assumed:
            return True
        return self._summaries is not None and self._summaries.writer.target.prices.is_assumed

    def make_figures(self) -> PolicyFigures:
        points = self._points
        p50, p95 = _compute_percentiles(self._seconds)
        notes = [f"{rule} x{times}" for rule, times in self._notes.items()]
        if self._shortest_gap is not None:
            notes.append(f"{COMPACTION_GAP_NOTE}: {self._shortest_gap}")
        if self._summary_failure:
            notes.append(f"{self._summary_figures.failed:,} × an extract in its place: {self._summary_failure}")
        return PolicyFigures(
            policy=self._policy.name,
            requests=len(points),
            invalid_requests=self._invalid,
            over_window=self._over,
            refused_requests=self._refused,
            user_words_missing=self._missing,
            tokens_sum=sum(point.tokens for point in points),
            tokens_peak=max((point.tokens for point in points), default=0),
            cache_hit=compute_read_share(point.hit for point in points),
            usd=sum(point.usd for point in points),
            online=self._online,
            mutations=self._mutations,
            compactions=self._compactions,
            policy_ms_p50=p50,
            policy_ms_p95=p95,
            notes=tuple(notes),
            points=tuple(points),
            is_priced=not self._has_assumed_prices(),
            summaries=None if self._summaries is None else self._summary_figures,
        )


def _compute_percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile of durations in seconds, in milliseconds."""
    if not seconds:
        return 0.0, 0.0
    # ``quantiles`` needs two values.
    if len(seconds) == 1:
        return seconds[0] * 1e3, seconds[0] * 1e3
    cut_points = quantiles(seconds, n=20, method="inclusive")
    return cut_points[9] * 1e3, cut_points[18] * 1e3


def build_cache_request(
    study: SessionStudy,
    messages: Sequence[SizedMessage],
    plan: Plan,
) -> tuple[list[CacheBlock], list[int]]:
    """Return the blocks of a request, and its breakpoints as positions among them."""
    blocks: list[CacheBlock] = []
    last_blocks: list[int] = []
    for sized_message in messages:
        blocks += study.get_blocks(sized_message)
        last_blocks.append(len(blocks) - 1)
    breakpoints = []
    if plan.options.setup_breakpoint:
        breakpoints.append(SETUP_BREAKPOINT)
    inner_position, inner_parts = plan.options.inner_breakpoint or (-1, 0)
    for position in plan.options.cache_breakpoints:
        if position == inner_position:
            blocks_before = last_blocks[position - 1] + 1 if position else 0
            breakpoints.append(blocks_before + inner_parts - 1)
        elif position < len(last_blocks):
            breakpoints.append(last_blocks[position])
    return blocks, breakpoints


def _count_missing_user_messages(state: ConversationState, since: int, texts: list[str]) -> int:
    """Return how many required user messages are missing: those from index ``since`` on, and always the newest."""
    user_indexes: list[int] = []
    for index in range(len(state.history.sized_messages)):
        message = state.history.messages[index]
        if message.is_turn_start and message.text.strip():
            user_indexes.append(index)
    required_indexes = {index for index in user_indexes if index >= since} | set(user_indexes[-1:])
    return sum(not _is_shown_or_spilled(state, index, texts) for index in required_indexes)


def _is_shown_or_spilled(state: ConversationState, index: int, texts: list[str]) -> bool:
    """Return whether each text of a user message is in the request, either verbatim or spilled with its handle."""
    for part_index, part in enumerate(state.history.messages[index].parts):
        if not isinstance(part, Text) or any(part.text.strip() in text for text in texts):
            continue
        handles = []
        for edit in state.view.edits.get(index, ()):
            if edit.span.part == part_index and edit.blob_hash:
                handles.append(edit.blob_hash[:HANDLE_CHARS])
        if not _has_any_handle(texts, handles):
            return False
    return True


def _has_any_handle(texts: list[str], handles: list[str]) -> bool:
    return any(handle in text for text in texts for handle in handles)


_KIND_OF_PART = {"Thinking": "thinking", "ToolResult": "results", "Media": "media"}
"""Types of parts with a kind of their own in the picture; other parts have the role of their message."""


def _count_tokens_by_kind(study: SessionStudy, simulated_request: SimulatedRequest) -> dict[str, int]:
    """Return the tokens of a request by kind: setup, summary, user, assistant, thinking, results, stubs, media."""
    tokens_by_kind = {"setup": study.setting.setup_tokens}
    state = simulated_request.plan.state
    summary = state.view.compaction.summary if state.view.compaction else None
    for sized_message in simulated_request.sized_messages:
        # A message that was edited has no bytes of its own, only those of the original.
        is_edited = sized_message.raw is None and sized_message.base_raw is not None
        for part, (_, tokens) in zip(sized_message.message.parts, study.get_blocks(sized_message), strict=False):
            kind = _KIND_OF_PART.get(type(part).__name__, sized_message.message.role)
            if sized_message.message is summary:
                kind = "summary"
            elif kind == "results" and is_edited:
                kind = "stubs"
            tokens_by_kind[kind] = tokens_by_kind.get(kind, 0) + tokens
    return tokens_by_kind


def _name_request_event(simulated_request: SimulatedRequest) -> str:
    """Return the decision to mark in the picture, or ``""`` if the request has none worth a mark.

    If there are several, it is the one that usually removes most: a compaction, else pruning, else spilling. Trimming
    counts as pruning: it is OpenClaw's milder form of it, which keeps the start and end of a result.
    """
    plan = simulated_request.plan
    if plan.compaction is not None:
        if plan.compaction.trigger in {"slide", "history"}:
            return plan.compaction.trigger
        return "compaction"
    rules = {edit.rule for edit in plan.record}
    if rules & {"prune", "trim"}:
        return "prune"
    if "spill" in rules:
        return "spill"
    return ""


class CutResult(Struct, frozen=True):
    """What a policy keeps at the cuts of a session within one budget."""

    score: CutScore = CutScore()
    """If it could not be measured, only the dependencies, which do not depend on the policy."""
    requests_over: int = 0
    """Scored requests that did not fit. They are scored as they are, not shortened."""
    missing_reason: str = ""
    """Why the score could not be measured; empty if it was."""


def measure_cuts(
    study: SessionStudy,
    policy: Policy,
    tick: Callable[[], Any] = lambda: None,
    summaries: ModelSummaries | None = None,
) -> dict[str, CutResult]:
    """Measure ``policy`` at the cuts, for each budget of ``CUT_BUDGETS``.

    A budget with which the run fails, for example because it leaves no room for a request, has a reason instead.
    """
    results: dict[str, CutResult] = {}
    for budget in CUT_BUDGETS:
        try:
            results[str(budget)] = _measure_cuts_at(study, policy, budget, tick, summaries)
        except MEASURE_ERRORS as error:
            # The advice in the second sentence is about --window, which does not matter at cuts.
            problem, _, _ = str(error).partition(". ")
            reason = problem or type(error).__name__
            results[str(budget)] = CutResult(_count_dependencies(study), missing_reason=reason)
    return results


def _measure_cuts_at(
    study: SessionStudy,
    policy: Policy,
    budget: int,
    tick: Callable[[], Any],
    summaries: ModelSummaries | None,
) -> CutResult:
    cuts = {cut.position: cut for cut in study.get_cuts()}
    if not cuts:
        return CutResult()
    # The policy runs online up to the last cut, since its decisions at one cut depend on all requests before it.
    score = CutScore()
    requests_over = 0
    target = make_target_at_cuts(study.setting, budget, study.count_system_tokens())
    usable_tokens = compute_usable_window(target.limits.window)
    for simulated_request in simulate_requests(study, policy, target, summaries):
        tick()
        cut = cuts.pop(simulated_request.step.index, None)
        if cut is not None:
            context = [sized_message.message for sized_message in simulated_request.sized_messages]
            score += cut.score_context(context, budget)
            requests_over += simulated_request.tokens > usable_tokens
        if not cuts:
            break
    return CutResult(score, requests_over)


def _count_dependencies(study: SessionStudy) -> CutScore:
    """Return the number of dependencies at all cuts, or an empty score if the cuts themselves cannot be made."""
    try:
        return CutScore(dependencies=sum(len(cut.dependencies) for cut in study.get_cuts()))
    except MEASURE_ERRORS:
        return CutScore()


def encode_cuts(scores: dict[str, CutScore], missing: Container[str] = ()) -> dict[str, Any]:
    """Return the figures of cuts by budget; for a budget in ``missing`` all but the dependencies are None."""
    figures_by_budget: dict[str, Any] = {}
    for budget, score in scores.items():
        figures = msgspec.structs.asdict(pool_scores([score]))
        if budget in missing:
            figures = dict.fromkeys(figures) | {"dependencies": figures["dependencies"]}
        figures_by_budget[budget] = figures
    return figures_by_budget
