"""Measuring: what one policy's requests over one session cost, and what they lost. METRICS.md defines each figure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from statistics import quantiles
from typing import Any

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
from holdfast.replay.recall import RecallCounts, StepDependencies
from holdfast.replay.recall_at_cuts import MEMORY_ERRORS, CutScore, SessionCut, find_cut_positions, pool_scores
from holdfast.replay.session import ReplaySession
from holdfast.replay.simulate import ProviderTokenCounter, SimulatedRequest, simulate_session
from holdfast.replay.tokenizer import TextCounter
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import RequestSetup
from holdfast.state.plan import Plan
from holdfast.state.target import Target

CUT_BUDGETS = (4_000, 8_000, 16_000)
"""Rooms in tokens at which contexts are scored (METRICS, "Recall, at cuts")."""
MAX_RESERVE = 20_000
"""usable = window - min(20,000, window / 4) (METRICS, "Reserve")."""
MEASURE_ERRORS = (HoldfastError, *MEMORY_ERRORS)
"""What may end the run for one figure; the other figures of the row stand."""
COMPACTION_GAP_NOTE = "fewest steps between compactions"
"""How the note begins that every policy has which compacts twice."""


class MeasurementSettings(Struct, frozen=True):
    """What a replay is asked for, beside the session and the policy."""

    window: int
    frame: int
    target: Target
    """For the window; its limits are changed where a figure asks for another."""
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


class PolicyFigures(Struct, frozen=True):
    """All figures of one policy over one session; ``points`` are left out of the JSON."""

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
    is_priced: bool = True
    """Whether anybody told the prices of the model; else ``usd`` is 0 and means nothing."""

    @property
    def cost(self) -> float | None:
        """Return the dollars, if they are known."""
        return self.usd if self.is_priced else None


class SessionStudy:
    """One session made ready: what no policy changes is worked out once."""

    def __init__(self, session: ReplaySession, setting: MeasurementSettings) -> None:
        self.session = session
        self.setting = setting
        self.factor = session.compute_factor(setting.counter)
        self.messages: list[Message] = [sized_message.message for sized_message in session.messages]
        self.steps = [step.index for step in session.steps]
        self.dependencies = StepDependencies(self.messages, self.steps)
        self._known: dict[bytes, list[CacheBlock]] = {}
        self._cuts: list[SessionCut] | None = None

    def get_blocks(self, message: SizedMessage) -> list[CacheBlock]:
        """Return the blocks of a message as sent, in the judge's tokens."""
        message_blocks = self._known.get(message.digest)
        if message_blocks is None:
            raw = make_cache_blocks(message.message, self.setting.counter)
            message_blocks = self._known[message.digest] = [
                (digest, round(self.factor * tokens)) for digest, tokens in raw
            ]
        return message_blocks

    def count_message(self, message: SizedMessage) -> int:
        """Return the judge's tokens of a message as sent."""
        return sum(tokens for _, tokens in self.get_blocks(message))

    def count_text(self, text: str) -> int:
        """Return the judge's tokens of a text."""
        return round(self.factor * self.setting.counter(text))

    def get_cuts(self) -> list[SessionCut]:
        """Return the cuts of the session with their dependencies."""
        if self._cuts is None:
            sizes = [self.count_message(sized_message) for sized_message in self.session.messages]
            lookup = self.dependencies.lookup
            self._cuts = [
                SessionCut(self.messages, place, self.count_text, lookup=lookup, steps=self.steps)
                for place in find_cut_positions(self.messages, sizes, self.steps)
            ]
        return self._cuts


def compute_usable_window(window: int) -> int:
    """Return what a request may hold of a window."""
    return window - min(MAX_RESERVE, window // 4)


def compute_window_for_budget(budget: int, setup_tokens: int) -> int:
    """Return the smallest window whose usable part holds ``setup_tokens`` and ``budget``."""
    need = budget + setup_tokens
    window = need + min(MAX_RESERVE, -(-need // 3))
    while compute_usable_window(window) < need:
        window += 1
    return window


def simulate_requests(study: SessionStudy, policy: Policy, target: Target) -> Iterator[SimulatedRequest]:
    """Yield the requests of ``policy`` over the session, planned for ``target``."""
    return simulate_session(
        study.session, policy, target, ProviderTokenCounter(study.count_message, study.setting.frame)
    )


def make_target_at_cuts(setting: MeasurementSettings, budget: int) -> Target:
    """Return the target of the run that is scored at cuts: its window leaves ``budget`` tokens for messages.

    That window is none that anybody gave, so messages say what it was made for.
    """
    window = compute_window_for_budget(budget, setting.frame)
    return change_target_window(setting.target, window, setting.frame, f"made for {budget:,} tokens of messages")


def change_target_window(target: Target, window: int, setup_tokens: int, origin: str = "--window") -> Target:
    """Return ``target`` with another window and a frame of so many tokens; messages name ``origin`` for the window."""
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
) -> PolicyFigures:
    """Return the figures of ``policy`` over the session; ``keep`` is given each request's step and body."""
    setting = study.setting
    run = _PolicyRun(study, policy, keep)
    for simulated_request in simulate_requests(
        study, policy, change_target_window(setting.target, setting.window, setting.frame)
    ):
        run.add_request(simulated_request)
        tick()
    return run.make_figures()


class _PolicyRun:
    """Figures as they add up, request by request."""

    def __init__(self, study: SessionStudy, policy: Policy, keep: Callable[[int, bytes], Any] | None) -> None:
        self._study, self._policy, self._keep = study, policy, keep
        self._cache = SimulatedCache(study.setting.target.cache_rules)
        self._limit = compute_usable_window(study.setting.window)
        self._before: list[CacheBlock] = []
        self._points: list[RequestPoint] = []
        self._seconds: list[float] = []
        self._notes: dict[str, int] = {}
        self._online = RecallCounts()
        self._invalid = self._missing = self._mutations = self._compactions = self._over = self._refused = 0
        self._since = 0
        """First slot that no request had shown when the last compaction ran."""
        self._shown = 0
        """How many slots the request before could show."""
        self._last_compaction: int | None = None
        self._shortest: int | None = None

    def add_request(self, simulated_request: SimulatedRequest) -> None:
        study, plan = self._study, simulated_request.plan
        if plan.compaction is not None:
            self._add_compaction(simulated_request)
        data = self._render_body(simulated_request)
        is_invalid = any(finding.level == "error" for finding in validate_request(data, study.setting.target.api))
        is_over = simulated_request.tokens > self._limit
        self._invalid += is_invalid
        self._over += is_over
        self._refused += is_invalid or is_over
        if self._keep is not None:
            self._keep(simulated_request.step.index, data)
        texts = [
            text
            for sized_message in simulated_request.sized_messages
            for text in study.dependencies.lookup.get_texts(sized_message)
        ]
        self._online += study.dependencies.score_request(simulated_request.step.index, texts)
        self._missing += _count_missing_user_messages(plan.state, self._since, texts)
        self._seconds.append(simulated_request.seconds)
        for notice in plan.notices:
            self._notes[notice.rule] = self._notes.get(notice.rule, 0) + 1
        self._shown = simulated_request.step.index
        self._price_request(simulated_request)

    def _add_compaction(self, simulated_request: SimulatedRequest) -> None:
        number = len(self._points)
        if self._last_compaction is not None:
            gap = number - self._last_compaction
            self._shortest = gap if self._shortest is None else min(self._shortest, gap)
        self._last_compaction = number
        self._compactions += 1
        if simulated_request.plan.compaction is not None and simulated_request.plan.compaction.summary is not None:
            self._since = self._shown

    def _render_body(self, simulated_request: SimulatedRequest) -> bytes:
        target = self._study.setting.target
        required_fields = {"max_tokens": MAX_RESERVE} if get_api_spec(target.api).options.requires_max_tokens else {}
        return build_request_body(
            target.api,
            target.model,
            simulated_request.sized_messages,
            setup_fields=required_fields,
            options=simulated_request.plan.options,
        )

    def _price_request(self, simulated_request: SimulatedRequest) -> None:
        study = self._study
        request, marks = _build_cache_request(study, simulated_request.sized_messages, simulated_request.plan)
        self._mutations += self._before != request[: len(self._before)]
        self._before = request
        frame = (b"frame", study.setting.frame)
        usd = self._price_summary_call(simulated_request, frame)
        hit = self._cache.send_request(request, frame, marks, simulated_request.step.at)
        output = study.count_message(study.session.messages[simulated_request.step.index])
        usd += self._price_hit(hit, output)
        kinds = _count_tokens_by_kind(study, simulated_request)
        self._points.append(
            RequestPoint(
                simulated_request.step.index,
                simulated_request.tokens,
                kinds,
                hit,
                usd,
                _name_request_event(simulated_request),
            )
        )

    def _price_summary_call(self, simulated_request: SimulatedRequest, setup_block: CacheBlock) -> float:
        """Return what the call for a model's summary cost, where the policy would have made one."""
        compaction = simulated_request.plan.compaction
        if not self._policy.rules.model_writes_summaries or compaction is None or compaction.summary is None:
            return 0.0
        before = [
            block
            for sized_message in simulated_request.before_compaction
            for block in self._study.get_blocks(sized_message)
        ]
        hit = self._cache.send_request(before, setup_block, [len(before) - 1], simulated_request.step.at)
        words = compaction.summary.parts[0]  # what a model would have written; files read again behind it are not
        output = self._study.count_text(words.text) if isinstance(words, Text) else 0
        return self._price_hit(hit, output)

    def _price_hit(self, hit: CacheUse, output: int) -> float:
        """Return what a call cost; 0 where nobody told the prices."""
        prices = self._study.setting.target.prices
        return 0.0 if prices.is_assumed else price_request(hit, output, prices)

    def make_figures(self) -> PolicyFigures:
        points = self._points
        p50, p95 = _compute_percentiles(self._seconds)
        notes = [f"{rule} x{times}" for rule, times in self._notes.items()]
        if self._shortest is not None:
            notes.append(f"{COMPACTION_GAP_NOTE}: {self._shortest}")
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
            is_priced=not self._study.setting.target.prices.is_assumed,
        )


def _compute_percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    if len(seconds) < 2:
        return (seconds[0] * 1e3, seconds[0] * 1e3) if seconds else (0.0, 0.0)
    cut_points = quantiles(seconds, n=20, method="inclusive")
    return cut_points[9] * 1e3, cut_points[18] * 1e3


def _build_cache_request(
    study: SessionStudy, messages: Sequence[SizedMessage], plan: Plan
) -> tuple[list[CacheBlock], list[int]]:
    """Return the blocks of a request and where its breakpoints stand among them."""
    request: list[CacheBlock] = []
    ends: list[int] = []
    for sized_message in messages:
        request += study.get_blocks(sized_message)
        ends.append(len(request) - 1)
    marks = [ends[place] for place in plan.options.cache_breakpoints if place < len(ends)]
    return request, [SETUP_BREAKPOINT, *marks] if plan.options.setup_breakpoint else marks


def _count_missing_user_messages(state: ConversationState, since: int, texts: list[str]) -> int:
    """Return how many messages of the user are not there that must be: those since the last compaction, the newest."""
    users = [
        i
        for i in range(len(state.history.sized_messages))
        if state.history.messages[i].is_turn_start and state.history.messages[i].text.strip()
    ]
    required_indexes = {index for index in users if index >= since} | set(users[-1:])
    return sum(not _is_shown_or_spilled(state, index, texts) for index in required_indexes)


def _is_shown_or_spilled(state: ConversationState, index: int, texts: list[str]) -> bool:
    """Return whether each text of a user's message is in the request verbatim, or spilled with its handle there."""
    for place, part in enumerate(state.history.messages[index].parts):
        if not isinstance(part, Text) or any(part.text.strip() in text for text in texts):
            continue
        spill_edits = [edit for edit in state.view.edits.get(index, ()) if edit.span.part == place and edit.blob_hash]
        if not any(edit.blob_hash[:HANDLE_CHARS] in text for edit in spill_edits for text in texts):
            return False
    return True


_KIND_OF_PART = {"Thinking": "thinking", "ToolResult": "results", "Media": "media"}
"""Parts that are told apart in the picture; others count for who said them."""


def _count_tokens_by_kind(study: SessionStudy, simulated_request: SimulatedRequest) -> dict[str, int]:
    """Return the tokens of a request by kind: frame, summary, user, assistant, thinking, results, stubs, media."""
    out = {"frame": study.setting.frame}
    state = simulated_request.plan.state
    summary = state.view.compaction.summary if state.view.compaction else None
    for sized_message in simulated_request.sized_messages:
        for part, (_, tokens) in zip(sized_message.message.parts, study.get_blocks(sized_message), strict=False):
            kind = _KIND_OF_PART.get(type(part).__name__, sized_message.message.role)
            if sized_message.message is summary:
                kind = "summary"
            elif kind == "results" and sized_message.raw is None and sized_message.base_raw is not None:
                kind = "stubs"
            out[kind] = out.get(kind, 0) + tokens
    return out


def _name_request_event(simulated_request: SimulatedRequest) -> str:
    plan = simulated_request.plan
    if plan.compaction is not None:
        return plan.compaction.trigger if plan.compaction.trigger in {"slide", "history"} else "compaction"
    rules = {edit.rule for edit in plan.record}
    return "prune" if rules & {"prune", "trim"} else "spill" if "spill" in rules else ""


class CutResult(Struct, frozen=True):
    """What a policy keeps at the cuts of a session in one room."""

    score: CutScore = CutScore()
    """Where it is missing, the dependencies alone: they are the session's, not the policy's."""
    requests_over: int = 0
    """Requests scored that did not fit; they are scored as they are, not squeezed."""
    missing_reason: str = ""
    """Why the score could not be measured; empty where it was."""


def measure_cuts(study: SessionStudy, policy: Policy, tick: Callable[[], Any] = lambda: None) -> dict[str, CutResult]:
    """Return what ``policy`` keeps at the cuts, for each budget of ``CUT_BUDGETS``.

    A budget at which the run fails, as one that leaves no room for a request, says why; the others are measured.
    """
    results: dict[str, CutResult] = {}
    for budget in CUT_BUDGETS:
        try:
            results[str(budget)] = _measure_cuts_at(study, policy, budget, tick)
        except MEASURE_ERRORS as error:
            why = str(error).partition(". ")[0] or type(error).__name__  # the advice behind it is for --window
            results[str(budget)] = CutResult(_count_dependencies(study), missing_reason=why)
    return results


def _measure_cuts_at(study: SessionStudy, policy: Policy, budget: int, tick: Callable[[], Any]) -> CutResult:
    cuts = {cut.position: cut for cut in study.get_cuts()}
    if not cuts:
        return CutResult()
    score, over = CutScore(), 0
    target = make_target_at_cuts(study.setting, budget)
    for simulated_request in simulate_requests(study, policy, target):
        tick()
        cut = cuts.pop(simulated_request.step.index, None)
        if cut is not None:
            score += cut.score_context(
                [sized_message.message for sized_message in simulated_request.sized_messages], budget
            )
            over += simulated_request.tokens > compute_usable_window(target.limits.window)
        if not cuts:
            break
    return CutResult(score, over)


def _count_dependencies(study: SessionStudy) -> CutScore:
    """Return the dependencies at all cuts of the session; none where the cuts themselves could not be made."""
    try:
        return CutScore(dependencies=sum(len(cut.dependencies) for cut in study.get_cuts()))
    except MEASURE_ERRORS:
        return CutScore()


def encode_cuts(scores: dict[str, CutScore], missing: Container[str] = ()) -> dict[str, Any]:
    """Return the figures of cuts as the report gives them; of a budget in ``missing`` all but the dependencies null."""
    out: dict[str, Any] = {}
    for budget, score in scores.items():
        figures = msgspec.structs.asdict(pool_scores([score]))
        if budget in missing:
            figures = {name: value if name == "dependencies" else None for name, value in figures.items()}
        out[budget] = figures
    return out
