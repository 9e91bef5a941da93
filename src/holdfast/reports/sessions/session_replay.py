"""Replay one recorded session through policies: from a recording to the rows of its report.

``holdfast replay`` prints them, and the inspector compares policies with them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.config import Catalog, get_target
from holdfast.errors import FormatError, HoldfastError, WindowTooSmall
from holdfast.formats import Recording
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.budget import check_budget, compute_budget
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.pipeline import Policy
from holdfast.providers.registry import API_NAMES, DEFAULT_API
from holdfast.replay.losses import LossRecorder
from holdfast.replay.measure import (
    CUT_BUDGETS,
    MeasurementSettings,
    SessionStudy,
    change_target_window,
    compute_usable_window,
    make_target_at_cuts,
    measure_cuts,
    measure_policy,
)
from holdfast.replay.report import OUR_POLICY, PolicyRow, ReportSubject, note_strange_factor
from holdfast.replay.repositories import name_repository
from holdfast.replay.session import ReplaySession, make_replay_session
from holdfast.replay.tokenizer import get_tokenizer
from holdfast.replay.written_summaries import SummaryKind, SummaryModel, name_policy_with_summaries
from holdfast.reports.requests.request_size import RECORDED_ORIGIN, use_recorded_window
from holdfast.state.conversation_state import ConversationState
from holdfast.state.target import PlanInputs, Target

DEFAULT_WINDOW = 64_000
"""Tokens. Chosen by judgement: small enough for most recorded sessions to outgrow it, so that policies differ."""
MAX_REPLAY_WINDOW = 1_000_000_000
"""Tokens: a hundred times the largest window of any model. A larger number is a typing error."""
DEFAULT_SETUP_TOKENS = 10_000
"""Tokens assumed for system prompt and tools if the recording has none (docs/metrics.md, ``setup_tokens``)."""
POLICY_ERRORS = (HoldfastError, OSError, UnicodeError, RecursionError, MemoryError)
"""Errors of one policy, its summary model or its dump, in spite of which the other policies have their rows."""
_LISTED_PROBLEMS = 5
"""Damaged lines listed one by one."""


class ReplayJob(Struct, frozen=True):
    """The replay's options, apart from files. ``setup_tokens`` and ``api`` are None if the recording decides."""

    policies: tuple[Policy, ...]
    window: int
    catalog: Catalog
    model: str
    setup_tokens: int | None = None
    api: str | None = None
    measures_cuts: bool = False
    pictured_policies: tuple[str, ...] = ()
    """The policies to draw; only their requests are kept."""
    window_origin: str = "--window"
    """What messages name as the source of ``window``."""
    allows_recorded_window: bool = False
    """Whether a session of ``model`` is replayed in the window that it recorded, if the catalogue has none for it."""
    studies_losses: bool = False
    """Whether to tell where facts were lost."""
    summary_kinds: tuple[SummaryKind, ...] = ("extract",)
    """Each policy is run once for each of them."""
    summary_model: SummaryModel | None = None
    """The model that writes summaries; None if all are extracts."""


class PolicyFailure(Struct, frozen=True):
    """A policy that failed on a session that others could replay."""

    policy: str
    error: Exception


class ReplayReport(Struct, frozen=True):
    """The result of one session: a row for each policy, or its failure."""

    subject: ReportSubject
    rows: tuple[PolicyRow, ...]
    failures: tuple[PolicyFailure, ...] = ()


class ProgressListener(Protocol):
    """Receives the progress of a replay."""

    def begin_part(self, label: str, total: int) -> None:
        """Begin a part of ``total`` steps."""

    def advance(self) -> None:
        """Count one more step as done."""


class SessionRequestDump(Protocol):
    """Takes the requests of one session."""

    def open_policy_file(self, policy: str) -> AbstractContextManager[Callable[[int, bytes], None]]:
        """Open the file of one policy and return a function that writes the body of a step into it."""


class RequestDump(Protocol):
    """Takes the requests of a replay."""

    def open_session(self, file: str) -> SessionRequestDump:
        """Return what takes the requests of ``file``."""


def check_replay_window(replay_job: ReplayJob) -> None:
    """Raise ``WindowTooSmall`` if no session could be replayed with these options."""
    target = get_target(replay_job.api or API_NAMES[0], replay_job.model, catalog=replay_job.catalog)

    def check_policy(policy: Policy, setup_tokens: int) -> None:
        window, origin = replay_job.window, replay_job.window_origin
        fit_policy_to_window(policy, change_target_window(target, window, setup_tokens, origin))

    # Ours first, because its error names the window that would fit.
    for policy in sorted(replay_job.policies, key=lambda policy: policy.name != OUR_POLICY):
        try:
            check_policy(policy, replay_job.setup_tokens or 0)
        except WindowTooSmall:
            # Fails too, with an error that names the numbers most sessions have.
            check_policy(policy, DEFAULT_SETUP_TOKENS if replay_job.setup_tokens is None else replay_job.setup_tokens)
            raise


def replay_recording(
    file: str,
    recording: Recording,
    replay_job: ReplayJob,
    waiting: ProgressListener,
    dump: RequestDump | None = None,
) -> ReplayReport:
    """Replay a session, which the report calls ``file``, and return the report.

    Raises ``FormatError`` if it has no answer of a model, and the error of the last policy if all failed.
    """
    api = replay_job.api or _choose_replay_api(recording, replay_job)
    session = make_replay_session(recording, api)
    if not session.steps:
        message_count = format_count(len(session.messages), "message")
        raise FormatError(f"no model answer is recorded in it ({message_count}); nothing to replay")
    recorded_window = None
    # The recorded window belongs to the recorded model.
    if replay_job.allows_recorded_window and recording.model == replay_job.model:
        recorded_window = recording.window
    study = _make_replay_study(session, api, replay_job, recorded_window)
    bodies = dump.open_session(file) if dump else None
    rows: list[PolicyRow] = []
    errors: list[tuple[str, Exception]] = []
    # Each budget of cuts is a run of its own.
    runs = 4 if replay_job.measures_cuts else 1
    for policy, kind in _list_policy_runs(replay_job):
        name = name_policy_with_summaries(policy, kind).name
        waiting.begin_part(f"{Path(file).name}  {name}", runs * len(session.steps))
        try:
            rows.append(_measure_row(file, study, policy, kind, replay_job, waiting, bodies))
        except POLICY_ERRORS as error:
            errors.append((name, error))
    if not rows:
        # With all policies the last one is ours, and its message is the most helpful.
        raise errors[-1][1]
    failures = [PolicyFailure(name, error) for name, error in errors]
    return ReplayReport(_make_subject(file, recording, study), tuple(rows), tuple(failures))


def _choose_replay_api(recording: Recording, replay_job: ReplayJob) -> str:
    """Return the API of the model, else of the recording, else the first one known."""
    native = replay_job.catalog.find_api(replay_job.model)
    if native is not None:
        return native if native in API_NAMES else DEFAULT_API
    return recording.api if recording.api in API_NAMES else API_NAMES[0]


def _make_replay_study(
    session: ReplaySession,
    api: str,
    replay_job: ReplayJob,
    recorded_window: int | None,
) -> SessionStudy:
    if replay_job.setup_tokens is not None:
        setup_tokens = replay_job.setup_tokens
    else:
        setup_tokens = session.setup.tokens or DEFAULT_SETUP_TOKENS
    target = get_target(api, replay_job.model, catalog=replay_job.catalog)
    window, origin = replay_job.window, replay_job.window_origin
    limits = use_recorded_window(target, recorded_window).limits
    if limits.window_source == RECORDED_ORIGIN:
        window, origin = limits.window, limits.window_source
    target = change_target_window(target, window, setup_tokens, origin)
    tokenizer_name, counter = get_tokenizer()
    return SessionStudy(session, MeasurementSettings(window, setup_tokens, target, tokenizer_name, counter))


def _list_policy_runs(replay_job: ReplayJob) -> list[tuple[Policy, SummaryKind]]:
    """Return each policy with each kind of summary; a policy that never compacts is run once."""
    runs: list[tuple[Policy, SummaryKind]] = []
    for policy in replay_job.policies:
        kinds: tuple[SummaryKind, ...] = ("extract",)
        if policy.settings.compaction.enabled:
            kinds = replay_job.summary_kinds
        runs += [(policy, kind) for kind in kinds]
    return runs


def _measure_row(
    file: str,
    study: SessionStudy,
    policy: Policy,
    kind: SummaryKind,
    replay_job: ReplayJob,
    waiting: ProgressListener,
    bodies: SessionRequestDump | None,
) -> PolicyRow:
    """Measure ``policy`` and return its row; figures at cuts may be missing, other errors are raised."""
    policy, notes = fit_policy_to_window(policy, study.setting.target)
    policy = name_policy_with_summaries(policy, kind)
    summary_model = None if kind == "extract" else replay_job.summary_model
    # Requests are dumped under the number of the step, while measuring counts messages.
    step_numbers = {step.index: number for number, step in enumerate(study.session.steps)}
    with bodies.open_policy_file(policy.name) if bodies else nullcontext() as write:
        keep = (lambda step, body: write(step_numbers[step], body)) if write else None
        summaries = summary_model.start_summaries() if summary_model else None
        recorder = LossRecorder(study, file) if replay_job.studies_losses else None
        watch_needs = recorder.add_request if recorder else None
        measurement = measure_policy(study, policy, waiting.advance, keep, summaries, watch_needs)
    if policy.name not in replay_job.pictured_policies:
        # The points of every request take much memory.
        measurement = replace(measurement, points=())
    row = PolicyRow(measurement, notes=notes, losses=recorder.make_report() if recorder else None)
    if replay_job.measures_cuts:
        row = _add_cut_scores(row, study, policy, waiting, summary_model)
    return row


def _add_cut_scores(
    row: PolicyRow,
    study: SessionStudy,
    policy: Policy,
    waiting: ProgressListener,
    summary_model: SummaryModel | None,
) -> PolicyRow:
    """Return ``row`` with the facts that the policy keeps at cuts, as far as they can be measured."""
    summaries = summary_model.start_summaries() if summary_model else None
    cut_results = measure_cuts(study, _drop_policy_minimum(policy), waiting.advance, summaries)
    scores = {}
    over = []
    missing_budgets = {}
    for budget, cut_result in cut_results.items():
        scores[budget] = cut_result.score
        if cut_result.requests_over:
            over.append(f"over at {format_count(cut_result.requests_over, 'cut')} of {int(budget):,}")
        if cut_result.missing_reason:
            missing_budgets[budget] = cut_result.missing_reason
    return replace(
        row,
        cut_scores=scores,
        notes=(*row.notes, *_note_degenerate_cuts(study, policy), *over),
        missing_budgets=missing_budgets,
    )


def _make_subject(file: str, recording: Recording, study: SessionStudy) -> ReportSubject:
    session, setting = study.session, study.setting
    last = session.steps[-1].index
    repository, repository_origin = name_repository(recording.cwd, file)
    message_tokens = sum(study.count_message(sized_message) for sized_message in session.messages[:last])
    return ReportSubject(
        file=file,
        format=recording.format,
        window=setting.window,
        usable=compute_usable_window(setting.window),
        setup_tokens=setting.setup_tokens,
        api=setting.target.api,
        model=setting.target.model,
        tokenizer=setting.tokenizer,
        factor=study.factor,
        messages=len(session.messages),
        steps=len(session.steps),
        peak_tokens=setting.setup_tokens + message_tokens,
        problems=(*_list_problems(recording), *note_strange_factor(study.factor), *_note_missing_price(setting.target)),
        repository=repository,
        repository_origin=repository_origin,
    )


def _note_missing_price(target: Target) -> tuple[str, ...]:
    """Return a note if the model has no known price."""
    if not target.prices.is_assumed:
        return ()
    model = clean_single_line(target.model)
    return (f"{model} has no known price, so costs are not shown; set a [[price]] in holdfast.toml",)


def _list_problems(recording: Recording) -> tuple[str, ...]:
    """List the damaged lines of a file, the first few one by one."""
    lines = [clean_single_line(problem.message) for problem in recording.problems[:_LISTED_PROBLEMS]]
    hidden_count = len(recording.problems) - len(lines)
    if hidden_count:
        lines.append(f"and {format_count(hidden_count, 'more line')}")
    return tuple(lines)


# -- policies under their own minimum ----------------------------------------------------------------------------------


def fit_policy_to_window(policy: Policy, target: Target) -> tuple[Policy, tuple[str, ...]]:
    """Return ``policy`` as it can run in this window, with a note if the window is below the policy's own minimum.

    Our own policy then raises ``WindowTooSmall``; a preset runs anyway, marked ``degenerate`` (docs/metrics.md).
    ``WindowTooSmall`` is raised for any policy if nothing fits.
    """
    try:
        check_budget(target, policy.settings, policy.rules)
    except WindowTooSmall as error:
        if policy.name == OUR_POLICY:
            raise
        if compute_budget(target, policy.settings).message_tokens <= 0:
            window, setup_tokens = target.limits.window, target.setup.tokens
            raise WindowTooSmall(
                f"a window of {window:,} tokens has no room for messages beside {setup_tokens:,} for system prompt "
                "and tools; give a larger window, or a smaller setup"
            ) from None
        return _drop_policy_minimum(policy), (f"degenerate: {str(error).partition('. ')[0]}",)
    why = _explain_degenerate(policy, target)
    return policy, (f"degenerate: {why}",) if why else ()


def _drop_policy_minimum(policy: Policy) -> Policy:
    """Return ``policy`` without its minimum window."""
    rules = policy.rules.without_window_minimum()
    return replace(policy, rules=rules).with_settings(window={"min_budget": 0})


def _explain_degenerate(policy: Policy, target: Target) -> str:
    """Explain why the policy would compact all the time in this window, or return an empty string."""
    settings, rules = policy.settings, policy.rules
    if not settings.compaction.enabled:
        return ""
    budget = compute_budget(target, settings)
    # The trigger of an empty conversation: the size at which the policy would compact any session here.
    builder = PlanBuilder(ConversationState(), target, settings, PlanInputs(), budget, rules)
    limit = rules.compute_trigger_size(builder)
    room = limit - target.setup.tokens
    if room <= 0:
        return f"it compacts at {limit:,} tokens, but system prompt and tools alone have {target.setup.tokens:,}"
    if rules.get_min_tail_tokens() >= room:
        return (
            f"it keeps {rules.get_min_tail_tokens():,} tokens, and compacts when there are {room:,} "
            "beside system prompt and tools"
        )
    return ""


def _note_degenerate_cuts(study: SessionStudy, policy: Policy) -> tuple[str, ...]:
    """Return a note with the budgets of cuts at which the policy is below its own minimum."""
    degenerate_budgets = []
    for budget in CUT_BUDGETS:
        if _explain_degenerate(policy, make_target_at_cuts(study.setting, budget, study.count_system_tokens())):
            degenerate_budgets.append(f"{budget:,}")
    if degenerate_budgets:
        return (f"degenerate at cuts of {', '.join(degenerate_budgets)}",)
    return ()
