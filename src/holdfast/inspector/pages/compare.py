"""Policies compared on a session: what can be asked, how far the replay is, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from holdfast.config import DEFAULT_MODEL, get_target
from holdfast.errors import HoldfastError
from holdfast.inspector.charts import SizeColumn
from holdfast.inspector.comparison.jobs import ComparisonOutcome, RunningComparison
from holdfast.inspector.comparison.replay_job import make_replay_job
from holdfast.inspector.comparison.values import ComparedPolicy, Comparison, ComparisonQuestion
from holdfast.inspector.rendering import format_duration, show_invisible
from holdfast.inspector.sources import InspectedStore
from holdfast.planning.presets.registry import PRESETS
from holdfast.providers.registry import API_NAMES
from holdfast.replay.report import OUR_POLICY
from holdfast.reports.requests.request_size import use_recorded_window
from holdfast.reports.sessions.session_replay import DEFAULT_WINDOW, MAX_REPLAY_WINDOW, check_replay_window
from holdfast.reports.sessions.timeline import Timeline
from holdfast.store.base import SessionInfo

PRESELECTED_POLICIES = (OUR_POLICY, "claude-code", "opencode")
"""Chosen by judgement: ours, that of the most used agent, and the one whose cost is nearest to ours."""
SECONDS_PER_REQUEST = 0.003
"""Seconds that a replay takes for each request of each policy, whatever its size: measured with session files of 1 to
4 MB (docs/inspector.md)."""
SECONDS_PER_TOKEN = 0.12e-6
"""Seconds in addition for each token of a request."""
USUAL_FILL = 0.6
"""Share of the window that a request of a policy fills on average."""
CUT_WINDOWS = 1.25
"""Windows at the top of the charts. Chosen by judgement: a policy that removes nothing would press the others flat, so
its columns are cut there."""


class ComparisonChoice(Struct, frozen=True):
    """What the form of the page says."""

    policies: tuple[str, ...]
    window: str
    """As it was written."""
    model: str


class SizeBar(Struct, frozen=True):
    """A column of a chart. Its height is in per cent of the chart."""

    column: SizeColumn
    height: float
    is_over: bool
    """Whether the largest request is over the usable part of the window."""


class PolicyLine(Struct, frozen=True):
    """A policy in the table and among the charts."""

    figures: ComparedPolicy
    cost_ratio: float | None
    """Its cost as a multiple of ours; None if ours is not there or has no cost."""
    best: frozenset[str]
    """The figures in which no other policy is better."""
    bars: tuple[SizeBar, ...]


class ComparisonResultView(Struct, frozen=True):
    """A result as the page shows it."""

    comparison: Comparison
    lines: tuple[PolicyLine, ...]
    usable_height: float
    """Height of the line of the usable part of the window, in per cent of a chart."""
    seconds: float
    is_outdated: bool
    """Whether the session went on since."""


class ComparePage(Struct, frozen=True):
    """All that the page shows."""

    choice: ComparisonChoice
    models: tuple[str, ...]
    """The models whose prices can be chosen."""
    seconds: float
    """About how long the replay of the choice will take."""
    request_count: int
    message_count: int
    largest: int
    recorded_window: int
    """The window of the recorded requests; 0 if it is not known."""
    running: RunningComparison | None
    """The comparison that is running, of this session or another."""
    result: ComparisonResultView | None
    failure: str
    problem: str
    """What is wrong with the choice; empty if nothing is."""
    can_start: bool
    policies: Mapping[str, str]
    """All policies, with what they do."""


class WrongChoice(HoldfastError):
    """A form that asks for something that is not there."""


def load_compare_page(
    source: InspectedStore, info: SessionInfo, given: ComparisonChoice | None, problem: str = ""
) -> ComparePage:
    """Load the page of a session. Without a choice it has the defaults, and the newest result of the session."""
    timeline = source.load_timeline(info)
    choice = given or make_default_choice(source, info, timeline.window)
    outcome: ComparisonOutcome | None = None
    if given is None:
        outcome = source.comparisons.find_newest_outcome(info.key)
    elif not problem:
        try:
            outcome = source.comparisons.find_outcome(parse_choice(source, info, given))
        except HoldfastError as error:
            problem = str(error)
    if given is None and outcome is not None:
        question = outcome.question
        choice = ComparisonChoice(question.policies, str(question.window), question.model)
    return ComparePage(
        choice=choice,
        models=list_models(source, info),
        seconds=estimate_seconds(timeline, choice),
        request_count=len(timeline.requests),
        message_count=len(timeline.message_ids),
        largest=timeline.largest,
        recorded_window=timeline.window,
        running=source.comparisons.get_running(),
        result=_make_result(outcome, info) if outcome is not None else None,
        failure=outcome.failure if outcome is not None else "",
        problem=problem,
        can_start=source.comparisons.can_start,
        policies={name: preset.about for name, preset in PRESETS.items()},
    )


def make_default_choice(source: InspectedStore, info: SessionInfo, requests_window: int) -> ComparisonChoice:
    """Return what ``holdfast replay --model MODEL`` would take, with the policies that tell most.

    If the requests were made for a smaller window, ``requests_window`` (0 if not known), it is that one: in a larger
    one the policies do not meet what happened in the session.
    """
    model = list_models(source, info)[0]
    catalog = source.configuration.catalog
    window = DEFAULT_WINDOW
    if model == info.model:
        target = get_target(catalog.find_api(model) or API_NAMES[0], model, catalog=catalog)
        recorded_limits = use_recorded_window(target, info.recorded_window).limits
        if recorded_limits != target.limits:
            window = recorded_limits.window
    if requests_window:
        window = min(window, requests_window)
    return ComparisonChoice(PRESELECTED_POLICIES, str(window), model)


def list_models(source: InspectedStore, info: SessionInfo) -> tuple[str, ...]:
    """Return the models whose prices can be chosen: the session's if they are known, and that of ``replay``."""
    catalog = source.configuration.catalog
    api = catalog.find_api(info.model)
    if not info.model or api not in API_NAMES:
        return (DEFAULT_MODEL,)
    if get_target(api, info.model, catalog=catalog).prices.is_assumed:
        return (DEFAULT_MODEL,)
    return tuple(dict.fromkeys((info.model, DEFAULT_MODEL)))


def parse_choice(source: InspectedStore, info: SessionInfo, choice: ComparisonChoice) -> ComparisonQuestion:
    """Return the question of a choice. Raises ``WrongChoice``, or ``WindowTooSmall``, which say what to change."""
    unknown = [name for name in choice.policies if name not in PRESETS]
    if unknown:
        raise WrongChoice(f"there is no policy {unknown[0][:50]!r}; choose from {', '.join(PRESETS)}")
    if not choice.policies:
        raise WrongChoice("no policy is chosen; choose at least one")
    digits = choice.window.strip().replace(",", "").replace(" ", "")
    # The length first: a number of a million digits takes long to read.
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_REPLAY_WINDOW))
    if not is_number or not 0 < int(digits) <= MAX_REPLAY_WINDOW:
        raise WrongChoice(
            f"the window {choice.window[:50]!r} is not a number of tokens from 1 to {MAX_REPLAY_WINDOW:,}; "
            f"write one such as {DEFAULT_WINDOW:,}"
        )
    models = list_models(source, info)
    if choice.model not in models:
        raise WrongChoice(f"the prices of {choice.model[:50]!r} cannot be used here; choose {' or '.join(models)}")
    # In the order of the list, so that the same choice is the same question.
    policies = tuple(name for name in PRESETS if name in choice.policies)
    question = ComparisonQuestion(info.key, info.leaf_id, policies, int(digits), choice.model)
    check_replay_window(make_replay_job(question))
    return question


def estimate_seconds(timeline: Timeline, choice: ComparisonChoice) -> float:
    """Return about how many seconds the replay of a choice takes, by what others took."""
    digits = choice.window.replace(",", "").strip()
    window = int(digits) if digits.isdecimal() and len(digits) < 12 else DEFAULT_WINDOW
    requests = timeline.requests
    mean_tokens = sum(request.usage.input for request in requests) / max(1, len(requests))
    tokens = min(USUAL_FILL * window, mean_tokens) if mean_tokens else USUAL_FILL * window
    per_policy = len(requests) * (SECONDS_PER_REQUEST + SECONDS_PER_TOKEN * tokens)
    return 1 + len(choice.policies) * per_policy


# -- the result --------------------------------------------------------------------------------------------------------


def _make_result(outcome: ComparisonOutcome, info: SessionInfo) -> ComparisonResultView | None:
    comparison = outcome.comparison
    if comparison is None:
        return None
    full_tokens = choose_chart_top(comparison)
    best = find_best_policies(comparison.policies)
    own_cost = next((figures.usd for figures in comparison.policies if figures.policy == OUR_POLICY), None)
    lines = []
    for figures in sorted(comparison.policies, key=lambda figures: figures.policy != OUR_POLICY):
        lines.append(
            PolicyLine(
                figures=figures,
                cost_ratio=figures.usd / own_cost if own_cost and figures.usd is not None else None,
                best=frozenset(name for name, policies in best.items() if figures.policy in policies),
                bars=tuple(_make_bars(figures.sizes, full_tokens, comparison.usable)),
            )
        )
    return ComparisonResultView(
        comparison=comparison,
        lines=tuple(lines),
        usable_height=100 * comparison.usable / full_tokens,
        seconds=outcome.seconds,
        is_outdated=outcome.question.leaf != info.leaf_id,
    )


def choose_chart_top(comparison: Comparison) -> int:
    """Return the tokens at the top of every chart: the largest request, but no more than some windows."""
    largest = max(figures.tokens_peak for figures in comparison.policies)
    # A little over the line, so that it can be seen.
    return max(1, int(1.05 * comparison.usable), min(largest, int(CUT_WINDOWS * comparison.window)))


def _make_bars(columns: Sequence[SizeColumn], full_tokens: int, usable: int) -> Iterable[SizeBar]:
    for column in columns:
        yield SizeBar(column, 100 * min(1.0, column.tokens / full_tokens), column.tokens > usable)


def find_best_policies(policies: Sequence[ComparedPolicy]) -> dict[str, frozenset[str]]:
    """Return the policies with the best value of each figure; none where all have the same.

    A policy with refused requests can be best in refused requests and lost words alone: it is cheap, or full of facts,
    for the wrong reason. One whose minimum the window is below is never best, and nobody is better than it.
    """
    policies = [figures for figures in policies if not figures.is_degenerate]
    sound = frozenset(figures.policy for figures in policies if not figures.refused_requests)
    all_policies = frozenset(figures.policy for figures in policies)

    def find_best(values: Mapping[str, float | None], candidates: frozenset[str], sign: int) -> frozenset[str]:
        """Return the candidates with the largest value, or with ``sign`` -1 the smallest."""
        known = {policy: value for policy, value in values.items() if value is not None}
        are_all_equal = len(set(known.values())) < 2
        ranks = {policy: sign * value for policy, value in known.items() if policy in candidates}
        if are_all_equal or not ranks:
            return frozenset()
        best = max(ranks.values())
        return frozenset(policy for policy, rank in ranks.items() if rank == best)

    return {
        "refused_requests": find_best({line.policy: line.refused_requests for line in policies}, all_policies, -1),
        "user_words_missing": find_best({line.policy: line.user_words_missing for line in policies}, all_policies, -1),
        "usd": find_best({line.policy: line.usd for line in policies}, sound, -1),
        "cache_hit": find_best({line.policy: line.cache_hit for line in policies}, sound, 1),
        "online_fact_recall": find_best({line.policy: line.online_fact_recall for line in policies}, sound, 1),
    }


def describe_progress(running: RunningComparison) -> str:
    """Return how far a comparison is, in one line."""
    progress = running.progress
    if not progress.total:
        return "The session is read, and what its answers used again is looked up."
    text = f"{show_invisible(progress.policy)}: request {progress.done:,} of {progress.total:,} of all policies"
    if running.seconds_left is not None:
        text += f", {format_duration(running.seconds_left)} left"
    return text
