"""Recovery: what is done about a request that was refused, as a machine that cannot loop.

It waits for nothing and sends nothing: the runner tells what happened and is told what to do. All that may be done
between two answers is counted beforehand. Each action uses one of it up and nothing gives any back, so that
``compute_termination_rank`` falls with every event, and ``compute_max_requests`` is the most requests there can be.

An overflow is never sent again as it was. It climbs a ladder: a compaction, results cut, media gone, the smallest
request there is; some kinds enter elsewhere. What still shows media after a compaction loses these before it is
compacted once more: a second compaction would fold the message that they came with.

What only bad luck refused goes out again, byte for byte, counted apart. What the provider had sealed and takes no more
is left out, once; refused like that again, it was no help.
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

RecoveryStep: TypeAlias = Literal["output", "compact", "truncate", "media", "fallback"]
"""Ways to make it smaller: room for the answer · a compaction · results cut · media gone · whatever gives way."""
OVERFLOW_STEPS: tuple[RecoveryStep, ...] = ("compact", "truncate", "media", "fallback")
"""The order in which an overflow tries them; the output is lowered only where a provider counts it in."""
FIRST_STEP_BY_KIND: dict[str, RecoveryStep] = {
    "input_plus_output": "output",
    "request_bytes": "media",
    "oversized_part": "media",
    "media": "media",
}
"""Where a kind enters; every other overflow does with a compaction."""
TRANSIENT_KINDS = TRANSIENT_ERROR_KINDS | {"unknown"}
"""Kinds that the same bytes may survive a little later; ``quota`` is one where the provider says when."""
PERMANENT_STATUSES = frozenset({404, 405, 406, 414, 431, 501, 505})
"""Statuses that no waiting changes, whatever kind they are: it is the address, or the headers, that are wrong."""
SUMMARY_TOO_LARGE_MESSAGES: dict[str, str] = {
    "history_too_large": (
        "Conversation history too large to compact: what came before the last message is over the limit of the model"
        " that was to summarize it"
    ),
    "session_too_large": (
        "Session too large to compact: its messages are over the limit of the model that was to summarize them, even"
        " without media"
    ),
}
"""[C] Outcomes after which a run stops (``get_summary_overflow_rule``), and what it says then: the summary's own
request was too large, with the user's newest message kept beside it, or without one.
"""
SAME_REQUEST_REASON = "the same request would be refused again"
CONTEXT_OVERFLOW_KIND = "context_overflow"
"""Kind of the end of every recovery from an overflow."""
StopRule: TypeAlias = Literal[
    "permanent", "seen", "switched_off", "terminal", "retry_limit", "wait_too_long", "exhausted", "compaction_failed",
    "summary_too_large",
]  # fmt: skip
"""Why a run stops: sending again cannot help · the client has a part of the answer · ``recovery.enabled`` is off · a
setting ends this kind · tried too often · the provider asks for too long a wait · no step is left · nothing but a
compaction of our own went wrong · the request for a summary was too large itself."""


class ProviderRefusal(Struct, frozen=True):
    """The newest request was refused or not answered: what the classifier says of it, as plain values."""

    kind: str
    """A word of ``holdfast.types.VERDICT_KINDS``."""
    is_overflow: bool = False
    retry_after: float | None = None
    """Seconds the provider wants to wait, where it said so."""
    token_limit: int | None = None
    """Tokens it takes, and ``counted_tokens`` the tokens it counted."""
    counted_tokens: int | None = None
    estimated_tokens: int = 0
    """What the request was estimated at."""
    has_answer_started: bool = False
    """Whether the client already has bytes of an answer."""
    status: int | None = None
    has_media: bool = False
    """Whether the request showed images or documents."""
    is_signature_error: bool = False
    """Whether it is about a signature, or encrypted content, that the provider takes no more."""


class NoProgress(Struct, frozen=True):
    """What was pressed for did not make the request smaller; ``outcome`` says why, in the word of a compaction."""

    outcome: str


RecoveryEvent: TypeAlias = ProviderRefusal | NoProgress


class Retry(Struct, frozen=True):
    """Send the same bytes again after ``seconds``."""

    seconds: float


class Shrink(Struct, frozen=True):
    """Make the request smaller by ``step`` and send it, or say that this was useless."""

    step: RecoveryStep


class DropSignatures(Struct, frozen=True):
    """Leave out what the provider sealed in earlier answers and send it, or say again that it was refused."""


class Stop(Struct, frozen=True):
    """Give up: ``kind`` is the refusal's, or ``context_overflow``; ``why`` is for people, ``rule`` for programs."""

    kind: str
    why: str
    rule: StopRule = "permanent"


RecoveryAction: TypeAlias = Retry | Shrink | DropSignatures | Stop


class RecoveryState(Struct, frozen=True):
    """Where a run stands between two answers: how often each thing may still be done."""

    settings: Settings
    retries: int
    output: int = 0
    compact: int = 0
    truncate: int = 0
    media: int = 0
    fallback: int = 0
    signature_drops: int = 0
    forgiven_failures: int = 0
    """Compactions in a row that failed, so long ago that one more may be tried."""
    overflow: ProviderRefusal | None = None
    """The overflow that is being recovered from."""
    attempted_steps: tuple[str, ...] = ()
    """What was done about it, with the outcome where that was useless."""
    has_compacted: bool = False
    """Whether a compaction was made since the last answer."""
    stop: Stop | None = None


def start_recovery(
    state: ConversationState, settings: Settings, *, can_change_request: bool = True, is_breaker_cooled: bool = False
) -> RecoveryState:
    """Return where a run begins: what the log has used up since the last answer stays used up, also after a restart.

    An open breaker leaves no compaction: what failed so often is not tried again, the next step is;
    ``is_breaker_cooled``, it is tried once more. Where nothing ``can_change_request`` a request, because it is only
    looked at, it may be sent again, no more.
    """
    base_state, steps = RecoveryState(settings, retries=settings.retry.max_retries), settings.recovery.steps
    if not can_change_request:
        return base_state
    fresh = replace(
        base_state,
        output=1,
        compact=min(settings.recovery.max_compactions, settings.compaction.max_per_answer) * ("compact" in steps),
        truncate=int("truncate" in steps),
        media=int("media" in steps),
        fallback=int("fallback" in steps),
        signature_drops=int(can_recover_from_refusals(settings)),
        forgiven_failures=state.counters.failed_compactions if is_breaker_cooled else 0,
    )
    return subtract_used_steps(fresh, state)


def subtract_used_steps(state: RecoveryState, branch: ConversationState) -> RecoveryState:
    """Return ``state`` less what ``branch`` has used up: also compactions that nobody pressed for count."""
    settings = state.settings
    max_compactions = min(settings.recovery.max_compactions, settings.compaction.max_per_answer)
    is_open = branch.counters.failed_compactions > state.forgiven_failures and is_breaker_tripped(
        branch.counters.failed_compactions, settings
    )
    max_compactions = 0 if is_open else max(0, max_compactions - branch.counters.compactions_since_answer)
    return replace(
        state,
        compact=min(state.compact, max_compactions),
        truncate=min(state.truncate, max(0, 1 - branch.counters.truncations_since_answer)),
        has_compacted=branch.counters.compactions_since_answer > 0,
    )


def decide_next_action(state: RecoveryState, event: RecoveryEvent) -> tuple[RecoveryState, RecoveryAction]:
    """Return what to do about ``event``, and where the run stands then. After a ``Stop`` there is only that stop."""
    if state.stop is not None:
        return state, state.stop
    if isinstance(event, NoProgress) and event.outcome in SUMMARY_TOO_LARGE_MESSAGES:
        return _stop_on_summary_overflow(state, event)
    if isinstance(event, NoProgress):
        return _take_next_step(_record_no_progress(state, event))
    if event.has_answer_started:
        return _stop_with_rule(
            state, event, "seen", "a part of the answer was passed on already, and nothing is said twice"
        )
    if event.is_signature_error:
        return _drop_signatures_or_stop(state, event)
    if is_transient_refusal(event):
        return _retry_or_stop(state, event)
    if not event.is_overflow and event.kind not in FIRST_STEP_BY_KIND:
        return _stop_with_rule(state, event, "permanent", SAME_REQUEST_REASON)
    return _start_overflow_recovery(state, event)


def can_recover_from_refusals(settings: Settings) -> bool:
    """Return whether anything may be left out of a refused request: not by a policy that recovers from nothing."""
    return settings.recovery.enabled and bool(settings.recovery.steps)


def is_transient_refusal(event: ProviderRefusal) -> bool:
    """Return whether the same bytes may be answered a little later."""
    has_quota_reset = event.kind == "quota" and event.retry_after is not None
    return (
        (has_quota_reset or event.kind in TRANSIENT_KINDS)
        and not event.is_overflow
        and event.status not in PERMANENT_STATUSES
    )


def compute_termination_rank(state: RecoveryState) -> tuple[int, ...]:
    """Return how much may still be done, the last resort first; it falls with every event until the run has ended."""
    alive = int(state.stop is None)
    return (
        alive,
        state.signature_drops,
        state.fallback,
        state.media,
        state.truncate,
        state.compact,
        state.output,
        state.retries,
    )


def compute_max_requests(settings: Settings) -> int:
    """Return the most requests for one answer: the first, and one for each action that ``compute_termination_rank``
    counts.

    Requests for summaries are not among them; who writes those counts them.
    """
    return sum(compute_termination_rank(start_recovery(ConversationState(), settings)))


def _drop_signatures_or_stop(state: RecoveryState, event: ProviderRefusal) -> tuple[RecoveryState, RecoveryAction]:
    if state.signature_drops:
        return replace(state, signature_drops=0), DropSignatures()
    return _stop_with_rule(state, event, "permanent", SAME_REQUEST_REASON)


def _retry_or_stop(state: RecoveryState, event: ProviderRefusal) -> tuple[RecoveryState, RecoveryAction]:
    settings = state.settings
    if not state.retries:
        times = f"{settings.retry.max_retries + 1} times" if settings.retry.max_retries else "once"
        why = f"it was sent {times} (retry.max_retries)"
        return _stop_with_rule(state, event, "retry_limit", why)
    seconds = compute_retry_delay(settings.retry.max_retries - state.retries, event.retry_after, settings)
    if seconds is None:
        limit_text = f"{settings.retry.max_wait_seconds:,g} s at most are waited (retry.max_wait_seconds)"
        return _stop_with_rule(
            state, event, "wait_too_long", f"the provider wants {event.retry_after:,g} s to pass, and {limit_text}"
        )
    return replace(state, retries=state.retries - 1), Retry(seconds)


def _start_overflow_recovery(state: RecoveryState, event: ProviderRefusal) -> tuple[RecoveryState, RecoveryAction]:
    """Return the first step about an overflow, unless a setting says that there is none."""
    if not state.settings.recovery.enabled:
        return _stop_with_rule(state, event, "switched_off", "recovery is switched off (recovery.enabled)")
    if event.kind == "tpm_ceiling" and state.settings.recovery.stops_at_rate_ceiling:
        return _stop_with_rule(
            state, event, "terminal", "one request is over the limit of a minute (recovery.stops_at_rate_ceiling)"
        )
    return _take_next_step(replace(state, overflow=event))


def _record_no_progress(state: RecoveryState, event: NoProgress) -> RecoveryState:
    """Return the state after a step that was no use; a compaction is not made twice of what is still the same."""
    last = state.attempted_steps[-1].partition(" ")[0] if state.attempted_steps else "compact"
    attempt = f"{last} ({event.outcome.replace('_', ' ')})"
    return replace(
        state, compact=0 if last == "compact" else state.compact, attempted_steps=(*state.attempted_steps[:-1], attempt)
    )


def _take_next_step(state: RecoveryState) -> tuple[RecoveryState, RecoveryAction]:
    """Return the first step that is left; the run ends where none is."""
    next_step = next((step for step in _list_steps(state) if getattr(state, step)), None)
    if next_step is None or not state.settings.recovery.enabled:
        return _stop_exhausted(state)
    changes = {next_step: getattr(state, next_step) - 1}
    return replace(state, attempted_steps=(*state.attempted_steps, next_step), **changes), Shrink(next_step)


def _list_steps(state: RecoveryState) -> tuple[RecoveryStep, ...]:
    """Return the steps for an overflow in their order; a picture that is refused has only one."""
    refusal = state.overflow
    if refusal is None:
        return OVERFLOW_STEPS
    entry: tuple[RecoveryStep, ...] = (FIRST_STEP_BY_KIND[refusal.kind],) if refusal.kind in FIRST_STEP_BY_KIND else ()
    if not refusal.is_overflow:
        return entry
    if refusal.has_media and state.has_compacted:
        return (*entry, "media", *OVERFLOW_STEPS)
    return (*entry, *OVERFLOW_STEPS)


def _stop_exhausted(state: RecoveryState) -> tuple[RecoveryState, RecoveryAction]:
    attempts = ", ".join(state.attempted_steps) or "nothing"
    if state.overflow is None:
        stop = Stop("unknown", f"the compaction before the request failed; tried: {attempts}", "compaction_failed")
        return replace(state, stop=stop), stop
    return _stop_with_rule(
        state, state.overflow, "exhausted", f"nothing is left that would make it smaller; tried: {attempts}"
    )


def _stop_on_summary_overflow(state: RecoveryState, event: NoProgress) -> tuple[RecoveryState, RecoveryAction]:
    """Return the end of a run whose summary could not be asked for: [C] does not try anything else then."""
    why = SUMMARY_TOO_LARGE_MESSAGES[event.outcome]
    if state.overflow is not None:
        return _stop_with_rule(state, state.overflow, "summary_too_large", why)
    stop = Stop(CONTEXT_OVERFLOW_KIND, why, "summary_too_large")
    return replace(state, stop=stop), stop


def _stop_with_rule(
    state: RecoveryState, event: ProviderRefusal, rule: StopRule, why: str
) -> tuple[RecoveryState, RecoveryAction]:
    kind = CONTEXT_OVERFLOW_KIND if event.is_overflow else event.kind
    stop = Stop(kind, why, rule)
    return replace(state, overflow=event, stop=stop), stop
