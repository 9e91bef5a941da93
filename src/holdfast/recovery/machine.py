"""Recovery: decide what to do about a refused request, as a state machine that cannot loop.

It neither waits nor sends: the runner reports an event and gets an action. Every action that it may decide between two
answers is counted beforehand. Each action uses up one of these counts and nothing gives any back, so
``compute_termination_rank`` falls with every event.

The runner (``engine/run/recover.py``) repeats a few requests without asking. No count stands for these, but each can
happen only once or twice, as ``MAX_UNCOUNTED_REQUESTS`` says. ``compute_max_requests`` bounds all requests together.

A request that overflowed is not sent again unchanged, except once after an empty answer, which may be the model's own.
Recovery goes through the overflow steps: compact, truncate results, drop media, smallest request; some kinds of error
begin elsewhere. If the request still shows media after a compaction, these go before the next one: a second compaction
would summarize the message that they came with.

A request that failed for a passing reason is sent again byte for byte, counted apart. Signed data that the provider no
longer accepts is left out once; if the request is refused for it again, leaving it out was no help, and the run stops.
Fields that refusals name are changed up to ``MAX_FIELD_CHANGES`` times, each field once; only a limit that a refusal
lowers further is changed again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.planning.circuit_breaker import is_breaker_tripped
from holdfast.planning.settings import Settings
from holdfast.recovery.retry import compute_retry_delay
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import TRANSIENT_ERROR_KINDS
from holdfast.state.field_lessons import FieldLesson, find_new_lessons

RecoveryStep: TypeAlias = Literal["output", "compact", "truncate", "media", "fallback"]
"""Ways to make a request smaller: less output asked for, a compaction, truncated results, no media, the smallest
request there is."""
OVERFLOW_STEPS: tuple[RecoveryStep, ...] = ("compact", "truncate", "media", "fallback")
"""The order of the steps after an overflow, from the one that loses least. ``output`` is only for providers that count
the output asked for into the window."""
FIRST_STEP_BY_KIND: dict[str, RecoveryStep] = {
    "input_plus_output": "output",
    "request_bytes": "media",
    "oversized_part": "media",
    "media": "media",
}
"""The first step, by the kind of refusal, for kinds against which a compaction does not help."""
TRANSIENT_KINDS = TRANSIENT_ERROR_KINDS | {"unknown"}
"""Kinds after which the same bytes may be accepted a little later; so is ``quota`` if the provider says when."""
PERMANENT_STATUSES = frozenset({404, 405, 406, 414, 431, 501, 505})
"""HTTP statuses that no waiting changes, whatever the kind: the address or the headers are wrong."""
SUMMARY_TOO_LARGE_MESSAGES: dict[str, str] = {
    "history_too_large": (
        "Conversation history too large to compact: the messages before the last one are over the limit of the model"
        " that was to summarize it"
    ),
    "session_too_large": (
        "Session too large to compact: its messages are over the limit of the model that was to summarize them, even"
        " without media"
    ),
}
"""Message by outcome after which a run stops, as opencode does, if ``summarizer.when_too_large`` says so: the summary's
own request was too large, with the user's newest message kept beside it, or without one.
"""
SAME_REQUEST_REASON = "the same request would be refused again"
MAX_FIELD_CHANGES = 20
"""Refusals of one run that may name a field each, one that no refusal of the run named before.

Most servers name the first wrong field only, so a client of another API needs one request for each. Chat Completions
has about 35 options, of which clients send fewer than 20. Chosen by judgement.
"""
MAX_UNCOUNTED_REQUESTS = 5
"""Most requests of one run that the runner sends again without asking the machine.

One in the strict form and one that is checked: both hold for all later requests of the session, so neither is tried
twice. Two without a container that has expired, the one that the client names and the one that the log knows: both are
remembered as gone. One after an empty answer that cannot be made smaller: the next one is accepted.
"""
RequestForm: TypeAlias = Literal["strict", "checked"]
"""How a client's content is sent after its server refused it as it was: normalized by the rules of the API's maker, or
checked and fixed by our lint rules."""
CONTEXT_OVERFLOW_KIND = "context_overflow"
"""Kind of every stop after an overflow."""
StopRule: TypeAlias = Literal[
    "permanent", "seen", "switched_off", "terminal", "retry_limit", "wait_too_long", "exhausted", "compaction_failed",
    "summary_too_large",
]  # fmt: skip
"""Why a run stops: sending again cannot help; the client already has a part of the answer; ``recovery.enabled`` is off;
a setting ends recovery for this kind; too many retries; the provider asks for too long a wait; no step is left; a
compaction of our own failed before any request; the request for the summary was too large itself."""


class ProviderRefusal(Struct, frozen=True):
    """The newest request was refused or not answered: the classifier's verdict as plain values."""

    kind: str
    """One of ``holdfast.types.VERDICT_KINDS``."""
    is_overflow: bool = False
    retry_after: float | None = None
    """Seconds that the provider asks to wait; None if it gave none."""
    token_limit: int | None = None
    """Tokens that the provider accepts; None if it named no limit."""
    counted_tokens: int | None = None
    """Tokens that the provider counted in the request; None if it gave no count."""
    estimated_tokens: int = 0
    """Our estimate of the request."""
    has_answer_started: bool = False
    """Whether bytes of an answer have reached the client."""
    status: int | None = None
    has_media: bool = False
    """Whether the request held images or documents."""
    is_signature_error: bool = False
    """Whether the provider no longer accepts a signature, or encrypted content, in the request."""
    field_lessons: tuple[FieldLesson, ...] = ()
    """What would change in the request if it did as the refusal says about single fields; empty if it names none, or
    none that can be changed."""


class NoProgress(Struct, frozen=True):
    """The last ``Shrink`` did not make the request smaller."""

    outcome: str
    """Why not, as the outcome of a compaction."""


RecoveryEvent: TypeAlias = ProviderRefusal | NoProgress


class Retry(Struct, frozen=True):
    """Send the same bytes again after ``seconds``."""

    seconds: float


class Shrink(Struct, frozen=True):
    """Make the request smaller by ``step`` and send it, or report ``NoProgress``."""

    step: RecoveryStep


class DropSignatures(Struct, frozen=True):
    """Send the request without the provider's signed data in earlier answers.

    If there is none, report the refusal again: it then stops the run.
    """


class ChangeFields(Struct, frozen=True):
    """Send the request with single fields left out, filled or lowered, as the refusal names them."""

    lessons: tuple[FieldLesson, ...]


class Stop(Struct, frozen=True):
    """Give up."""

    kind: str
    """The refusal's kind, or ``context_overflow``."""
    why: str
    """The reason, for people."""
    rule: StopRule = "permanent"
    """The reason, for programs."""


RecoveryAction: TypeAlias = Retry | Shrink | DropSignatures | ChangeFields | Stop


class RecoveryState(Struct, frozen=True):
    """Progress of recovery between two answers: how often each action may still be taken."""

    settings: Settings
    retries: int
    output: int = 0
    compact: int = 0
    truncate: int = 0
    media: int = 0
    fallback: int = 0
    signature_drops: int = 0
    field_changes: int = 0
    forgiven_failures: int = 0
    """Consecutive failed compactions that no longer count, since the breaker has cooled down: one more may be tried."""
    overflow: ProviderRefusal | None = None
    """The overflow that is being recovered from."""
    attempted_steps: tuple[str, ...] = ()
    """The steps taken since the run began, each with its outcome if it did not make the request smaller."""
    has_compacted: bool = False
    """Whether a compaction was made since the last answer."""
    changed_fields: tuple[FieldLesson, ...] = ()
    """The lessons about fields that were acted on since the run began."""
    tried_forms: tuple[RequestForm, ...] = ()
    """The forms that the runner went over to since the run began."""
    stop: Stop | None = None


def start_recovery(
    conversation: ConversationState,
    settings: Settings,
    *,
    can_change_request: bool = True,
    is_breaker_cooled: bool = False,
) -> RecoveryState:
    """Return the state at the start of a run.

    Steps taken since the last answer, as the log tells, stay used up, also across a restart. An open breaker leaves no
    compaction but the later steps; if ``is_breaker_cooled``, one more is tried. If not ``can_change_request``, because
    requests are only passed through, a request may be sent again and nothing else.
    """
    unchanged_only = RecoveryState(settings, retries=settings.retry.max_retries)
    if not can_change_request:
        return unchanged_only
    steps = settings.recovery.steps
    all_steps = replace(
        unchanged_only,
        output=1,
        compact=_get_max_compactions(settings) if "compact" in steps else 0,
        truncate=int("truncate" in steps),
        media=int("media" in steps),
        fallback=int("fallback" in steps),
        signature_drops=int(can_recover_from_refusals(settings)),
        field_changes=MAX_FIELD_CHANGES if can_recover_from_refusals(settings) else 0,
        forgiven_failures=conversation.counters.failed_compactions if is_breaker_cooled else 0,
    )
    return subtract_used_steps(all_steps, conversation)


def subtract_used_steps(state: RecoveryState, conversation: ConversationState) -> RecoveryState:
    """Return ``state`` less the steps that ``conversation`` has used up since its last answer.

    Compactions count whoever asked for them: the limit is there because each loses something.
    """
    counters = conversation.counters
    # A breaker that has cooled down forgives the failures until then; one more failure trips it again.
    has_new_failures = counters.failed_compactions > state.forgiven_failures
    is_breaker_open = has_new_failures and is_breaker_tripped(counters.failed_compactions, state.settings)
    remaining_compactions = 0
    if not is_breaker_open:
        max_compactions = _get_max_compactions(state.settings)
        remaining_compactions = max(0, max_compactions - counters.compactions_since_answer)
    return replace(
        state,
        compact=min(state.compact, remaining_compactions),
        truncate=min(state.truncate, max(0, 1 - counters.truncations_since_answer)),
        has_compacted=counters.compactions_since_answer > 0,
    )


def _get_max_compactions(settings: Settings) -> int:
    return min(settings.recovery.max_compactions, settings.compaction.max_per_answer)


def decide_next_action(state: RecoveryState, event: RecoveryEvent) -> tuple[RecoveryState, RecoveryAction]:
    """Return the next state and the action to take about ``event``. After a ``Stop`` it stays that stop."""
    if state.stop is not None:
        return state, state.stop
    if isinstance(event, NoProgress):
        if event.outcome in SUMMARY_TOO_LARGE_MESSAGES:
            return _stop_on_summary_overflow(state, event)
        return _take_next_step(_record_no_progress(state, event))
    # The order matters: once a part of the answer is out, nothing may be sent again, whatever the error says. A refused
    # signature looks like any invalid request otherwise.
    if event.has_answer_started:
        why = "a part of the answer was already passed on, so the request is not sent again"
        return _stop_with_rule(state, event, "seen", why)
    if event.is_signature_error:
        return _drop_signatures_or_stop(state, event)
    # Before the wait for a passing error: an unknown error that names a field does not pass.
    new_lessons = find_new_lessons(event.field_lessons, state.changed_fields)
    if new_lessons and state.field_changes:
        changed_fields = (*state.changed_fields, *new_lessons)
        next_state = replace(state, field_changes=state.field_changes - 1, changed_fields=changed_fields)
        return next_state, ChangeFields(new_lessons)
    if is_transient_refusal(event):
        return _retry_or_stop(state, event)
    if not event.is_overflow and event.kind not in FIRST_STEP_BY_KIND:
        return _stop_with_rule(state, event, "permanent", SAME_REQUEST_REASON)
    return _start_overflow_recovery(state, event)


def can_recover_from_refusals(settings: Settings) -> bool:
    """Return whether the settings allow to change a refused request."""
    return settings.recovery.enabled and bool(settings.recovery.steps)


def is_transient_refusal(event: ProviderRefusal) -> bool:
    """Return whether the same bytes may be accepted a little later."""
    if event.is_overflow or event.status in PERMANENT_STATUSES:
        return False
    has_quota_reset = event.kind == "quota" and event.retry_after is not None
    return has_quota_reset or event.kind in TRANSIENT_KINDS


def compute_termination_rank(state: RecoveryState) -> tuple[int, ...]:
    """Return the actions left to the machine, as a tuple to compare: it falls with every event until the run ends.

    The most drastic step comes first: taking one never gives back a count before it. A test proves that recovery ends
    by this.
    """
    is_running = int(state.stop is None)
    return (
        is_running,
        state.signature_drops,
        state.field_changes,
        state.fallback,
        state.media,
        state.truncate,
        state.compact,
        state.output,
        state.retries,
    )


def compute_max_requests(settings: Settings) -> int:
    """Return the most requests that one run sends: the first, one for each action, and those without a count.

    Requests for summaries are not counted.
    """
    actions_and_first_request = sum(compute_termination_rank(start_recovery(ConversationState(), settings)))
    return actions_and_first_request + MAX_UNCOUNTED_REQUESTS


def _drop_signatures_or_stop(state: RecoveryState, event: ProviderRefusal) -> tuple[RecoveryState, RecoveryAction]:
    """Leave out the signed data once; if the request is refused for a signature again after that, stop."""
    if state.signature_drops:
        return replace(state, signature_drops=0), DropSignatures()
    return _stop_with_rule(state, event, "permanent", SAME_REQUEST_REASON)


def _retry_or_stop(state: RecoveryState, event: ProviderRefusal) -> tuple[RecoveryState, RecoveryAction]:
    """Send the same bytes again after a delay; stop if no retry is left or the provider asks for too long a wait."""
    settings = state.settings
    max_retries = settings.retry.max_retries
    if not state.retries:
        # The retries may have been of different requests, if it was made smaller in between.
        if max_retries:
            why = f"no retry is left of the {max_retries} that one answer may take (retry.max_retries)"
        else:
            why = "a failed request is not sent again (retry.max_retries is 0)"
        return _stop_with_rule(state, event, "retry_limit", why)
    used_retries = max_retries - state.retries
    seconds = compute_retry_delay(used_retries, event.retry_after, settings)
    if seconds is None:
        limit_text = f"the longest wait is {settings.retry.max_wait_seconds:,g} s (retry.max_wait_seconds)"
        why = f"the provider asks to wait {event.retry_after:,g} s, but {limit_text}"
        return _stop_with_rule(state, event, "wait_too_long", why)
    return replace(state, retries=state.retries - 1), Retry(seconds)


def _start_overflow_recovery(state: RecoveryState, event: ProviderRefusal) -> tuple[RecoveryState, RecoveryAction]:
    """Take the first step about an overflow, unless a setting rules recovery out."""
    if not state.settings.recovery.enabled:
        return _stop_with_rule(state, event, "switched_off", "recovery is switched off (recovery.enabled)")
    # A request over the limit of tokens a minute can never pass, however long one waits. A smaller one can, so it
    # counts as an overflow, unless the policy is one that gives up here.
    if event.kind == "tpm_ceiling" and state.settings.recovery.stops_at_rate_ceiling:
        why = "this one request is over the provider's limit of tokens a minute (recovery.stops_at_rate_ceiling)"
        return _stop_with_rule(state, event, "terminal", why)
    return _take_next_step(replace(state, overflow=event))


def _record_no_progress(state: RecoveryState, event: NoProgress) -> RecoveryState:
    """Record the outcome of the last step; after a useless compaction, allow no further one."""
    # Without a step the compaction was the planner's own, before the first request.
    if state.attempted_steps:
        last_step = state.attempted_steps[-1].partition(" ")[0]
    else:
        last_step = "compact"
    attempt = f"{last_step} ({event.outcome.replace('_', ' ')})"
    attempted_steps = (*state.attempted_steps[:-1], attempt)
    remaining_compactions = state.compact
    if last_step == "compact":
        # The messages are the same as before, so a second compaction would end the same way.
        remaining_compactions = 0
    return replace(state, compact=remaining_compactions, attempted_steps=attempted_steps)


def _take_next_step(state: RecoveryState) -> tuple[RecoveryState, RecoveryAction]:
    """Take the first step that is left, or stop the run."""
    if not state.settings.recovery.enabled:
        return _stop_exhausted(state)
    for step in _list_steps(state):
        remaining_count = getattr(state, step)  # each step is counted in the field of its name
        if remaining_count:
            changes = {step: remaining_count - 1}
            next_state = replace(state, attempted_steps=(*state.attempted_steps, step), **changes)
            return next_state, Shrink(step)
    return _stop_exhausted(state)


def _list_steps(state: RecoveryState) -> tuple[RecoveryStep, ...]:
    """Return the steps in the order to try them; the caller skips those that are used up.

    If the provider refused the media as such (their type or number) and not the request's size, the only step is to
    leave them out: no other step would help.
    """
    refusal = state.overflow
    if refusal is None:
        # The compaction that the plan asked for failed before the request was ever sent. So nobody named a kind of
        # overflow, and the steps have their usual order.
        return OVERFLOW_STEPS
    first_steps: tuple[RecoveryStep, ...] = ()
    if refusal.kind in FIRST_STEP_BY_KIND:
        first_steps = (FIRST_STEP_BY_KIND[refusal.kind],)
    if not refusal.is_overflow:
        return first_steps
    # A second compaction would summarize the message that the media came with, so they are dropped before it.
    if refusal.has_media and state.has_compacted:
        return (*first_steps, "media", *OVERFLOW_STEPS)
    return (*first_steps, *OVERFLOW_STEPS)


def _stop_exhausted(state: RecoveryState) -> tuple[RecoveryState, RecoveryAction]:
    """Stop because no step is left, and list the steps that were tried."""
    attempts = ", ".join(state.attempted_steps) or "nothing"
    if state.overflow is None:
        stop = Stop("unknown", f"the compaction before the request failed; tried: {attempts}", "compaction_failed")
        return replace(state, stop=stop), stop
    why = f"the request cannot be made smaller; tried: {attempts}"
    return _stop_with_rule(state, state.overflow, "exhausted", why)


def _stop_on_summary_overflow(state: RecoveryState, event: NoProgress) -> tuple[RecoveryState, RecoveryAction]:
    """Stop a run because the request for its summary overflowed: as opencode, this policy tries nothing else."""
    why = SUMMARY_TOO_LARGE_MESSAGES[event.outcome]
    if state.overflow is not None:
        return _stop_with_rule(state, state.overflow, "summary_too_large", why)
    stop = Stop(CONTEXT_OVERFLOW_KIND, why, "summary_too_large")
    return replace(state, stop=stop), stop


def _stop_with_rule(
    state: RecoveryState,
    event: ProviderRefusal,
    rule: StopRule,
    why: str,
) -> tuple[RecoveryState, RecoveryAction]:
    kind = CONTEXT_OVERFLOW_KIND if event.is_overflow else event.kind
    stop = Stop(kind, why, rule)
    return replace(state, overflow=event, stop=stop), stop
