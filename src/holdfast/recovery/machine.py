"""Recovery: what is done about a request that was refused, as a machine that cannot loop.

It waits for nothing and sends nothing: the runner tells what happened and is told what to do. All that may be done
between two answers is counted beforehand. Each action uses one of it up and nothing gives any back, so that ``rank``
falls with every event, and ``bound`` is the most requests there can be.

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

from holdfast.planning.breaker import failed_often
from holdfast.planning.settings import Settings
from holdfast.recovery.retry import wait
from holdfast.state.branch.branch import Branch
from holdfast.state.entries import PASSING

Step: TypeAlias = Literal["output", "compact", "truncate", "media", "fallback"]
"""Ways to make it smaller: room for the answer · a compaction · results cut · media gone · whatever gives way."""
LADDER: tuple[Step, ...] = ("compact", "truncate", "media", "fallback")
"""The order in which an overflow tries them; the output is lowered only where a provider counts it in."""
ENTRY: dict[str, Step] = {
    "input_plus_output": "output",
    "request_bytes": "media",
    "oversized_part": "media",
    "media": "media",
}
"""Where a kind enters; every other overflow does with a compaction."""
TRANSIENT = PASSING | {"unknown"}
"""Kinds that the same bytes may survive a little later; ``quota`` is one where the provider says when."""
LASTING = frozenset({404, 405, 406, 414, 431, 501, 505})
"""Statuses that no waiting changes, whatever kind they are: it is the address, or the headers, that are wrong."""
SUMMARY_TOO_LARGE: dict[str, str] = {
    "history_too_large": (
        "Conversation history too large to compact: what came before the last message is over the limit of the model"
        " that was to summarize it"
    ),
    "session_too_large": (
        "Session too large to compact: its messages are over the limit of the model that was to summarize them, even"
        " without media"
    ),
}
"""[C] Outcomes after which a run stops (``summary_overflow``), and what it says then: the summary's own request was
too large, with the user's newest message kept beside it, or without one."""
AGAIN = "the same request would be refused again"
OVERFLOWED = "context_overflow"
"""Kind of the end of every recovery from an overflow."""
Rule: TypeAlias = Literal[
    "permanent", "seen", "switched_off", "terminal", "retry_limit", "wait_too_long", "exhausted", "compaction_failed",
    "summary_too_large",
]  # fmt: skip
"""Why a run stops: sending again cannot help · the client has a part of the answer · ``emergency`` is off · a setting
ends this kind · tried too often · the provider asks for too long a wait · no rung is left · nothing but a compaction
of our own went wrong · the request for a summary was too large itself."""


class Refused(Struct, frozen=True):
    """The newest request was refused or not answered: what the classifier says of it, as plain values."""

    kind: str
    """A word of ``holdfast.providers.overflow.KINDS``."""
    is_overflow: bool = False
    retry_after: float | None = None
    """Seconds the provider wants to wait, where it said so."""
    limit: int | None = None
    """Tokens it takes, and ``requested`` the tokens it counted."""
    requested: int | None = None
    tokens: int = 0
    """What the request was estimated at."""
    seen: bool = False
    """Whether the client already has bytes of an answer."""
    status: int | None = None
    shows_media: bool = False
    """Whether the request showed images or documents."""
    sealed: bool = False
    """Whether it is about a signature, or encrypted content, that the provider takes no more."""


class Useless(Struct, frozen=True):
    """What was pressed for did not make the request smaller; ``outcome`` says why, in the word of a compaction."""

    outcome: str


Event: TypeAlias = Refused | Useless


class Retry(Struct, frozen=True):
    """Send the same bytes again after ``seconds``."""

    seconds: float


class Press(Struct, frozen=True):
    """Make the request smaller by ``rung`` and send it, or say that this was useless."""

    rung: Step


class Unseal(Struct, frozen=True):
    """Leave out what the provider sealed in earlier answers and send it, or say again that it was refused."""


class Stop(Struct, frozen=True):
    """Give up: ``kind`` is the refusal's, or ``context_overflow``; ``why`` is for people, ``rule`` for programs."""

    kind: str
    why: str
    rule: Rule = "permanent"


Action: TypeAlias = Retry | Press | Unseal | Stop


class Recovery(Struct, frozen=True):
    """Where a run stands between two answers: how often each thing may still be done."""

    settings: Settings
    retries: int
    output: int = 0
    compact: int = 0
    truncate: int = 0
    media: int = 0
    fallback: int = 0
    seals: int = 0
    cooled: int = 0
    """Compactions in a row that failed, so long ago that one more may be tried."""
    refused: Refused | None = None
    """The overflow that is being recovered from."""
    tried: tuple[str, ...] = ()
    """What was done about it, with the outcome where that was useless."""
    compacted: bool = False
    """Whether a compaction was made since the last answer."""
    ended: Stop | None = None


def begin(branch: Branch, settings: Settings, *, changes: bool = True, cooled: bool = False) -> Recovery:
    """Return where a run begins: what the log has used up since the last answer stays used up, also after a restart.

    An open breaker leaves no compaction: what failed so often is not tried again, the next rung is; ``cooled``, it is
    tried once more. Where nothing ``changes`` a request, because it is only looked at, it may be sent again, no more.
    """
    unchanged, rungs = Recovery(settings, retries=settings.retries_most), settings.recovery_rungs
    if not changes:
        return unchanged
    fresh = replace(
        unchanged,
        output=1,
        compact=min(settings.recovery_compactions, settings.compactions_most) * ("compact" in rungs),
        truncate=int("truncate" in rungs),
        media=int("media" in rungs),
        fallback=int("fallback" in rungs),
        seals=int(may_press(settings)),
        cooled=branch.failures if cooled else 0,
    )
    return counted(fresh, branch)


def counted(state: Recovery, branch: Branch) -> Recovery:
    """Return ``state`` less what ``branch`` has used up: also compactions that nobody pressed for count."""
    settings = state.settings
    most = min(settings.recovery_compactions, settings.compactions_most)
    is_open = branch.failures > state.cooled and failed_often(branch.failures, settings)
    most = 0 if is_open else max(0, most - branch.compactions)
    return replace(
        state,
        compact=min(state.compact, most),
        truncate=min(state.truncate, max(0, 1 - branch.truncations)),
        compacted=branch.compactions > 0,
    )


def after(state: Recovery, event: Event) -> tuple[Recovery, Action]:
    """Return what to do about ``event``, and where the run stands then. After a ``Stop`` there is only that stop."""
    if state.ended is not None:
        return state, state.ended
    if isinstance(event, Useless) and event.outcome in SUMMARY_TOO_LARGE:
        return _summary_stopped(state, event)
    if isinstance(event, Useless):
        return _climbed(_useless(state, event))
    if event.seen:
        return _stopped(state, event, "seen", "a part of the answer was passed on already, and nothing is said twice")
    if event.sealed:
        return _unsealed(state, event)
    if is_transient(event):
        return _retried(state, event)
    if not event.is_overflow and event.kind not in ENTRY:
        return _stopped(state, event, "permanent", AGAIN)
    return _pressed(state, event)


def may_press(settings: Settings) -> bool:
    """Return whether anything may be left out of a refused request: not by a policy that recovers from nothing."""
    return settings.emergency and bool(settings.recovery_rungs)


def is_transient(event: Refused) -> bool:
    """Return whether the same bytes may be answered a little later."""
    timed = event.kind == "quota" and event.retry_after is not None
    return (timed or event.kind in TRANSIENT) and not event.is_overflow and event.status not in LASTING


def rank(state: Recovery) -> tuple[int, ...]:
    """Return how much may still be done, the last resort first; it falls with every event until the run has ended."""
    alive = int(state.ended is None)
    return (alive, state.seals, state.fallback, state.media, state.truncate, state.compact, state.output, state.retries)


def bound(settings: Settings) -> int:
    """Return the most requests for one answer: the first, and one for each action that ``rank`` counts.

    Requests for summaries are not among them; who writes those counts them.
    """
    return sum(rank(begin(Branch(), settings)))


def _unsealed(state: Recovery, event: Refused) -> tuple[Recovery, Action]:
    if state.seals:
        return replace(state, seals=0), Unseal()
    return _stopped(state, event, "permanent", AGAIN)


def _retried(state: Recovery, event: Refused) -> tuple[Recovery, Action]:
    settings = state.settings
    if not state.retries:
        times = f"{settings.retries_most + 1} times" if settings.retries_most else "once"
        why = f"it was sent {times} (retries_most)"
        return _stopped(state, event, "retry_limit", why)
    seconds = wait(settings.retries_most - state.retries, event.retry_after, settings)
    if seconds is None:
        most = f"{settings.retry_wait_most:,g} s at most are waited (retry_wait_most)"
        return _stopped(
            state, event, "wait_too_long", f"the provider wants {event.retry_after:,g} s to pass, and {most}"
        )
    return replace(state, retries=state.retries - 1), Retry(seconds)


def _pressed(state: Recovery, event: Refused) -> tuple[Recovery, Action]:
    """Return the first step about an overflow, unless a setting says that there is none."""
    if not state.settings.emergency:
        return _stopped(state, event, "switched_off", "recovery is switched off (emergency)")
    if event.kind == "tpm_ceiling" and state.settings.tpm_terminal:
        return _stopped(state, event, "terminal", "one request is over the limit of a minute (tpm_terminal)")
    return _climbed(replace(state, refused=event))


def _useless(state: Recovery, event: Useless) -> Recovery:
    """Return the state after a step that was no use; a compaction is not made twice of what is still the same."""
    last = state.tried[-1].partition(" ")[0] if state.tried else "compact"
    told = f"{last} ({event.outcome.replace('_', ' ')})"
    return replace(state, compact=0 if last == "compact" else state.compact, tried=(*state.tried[:-1], told))


def _climbed(state: Recovery) -> tuple[Recovery, Action]:
    """Return the first step that is left; the run ends where none is."""
    rung = next((step for step in _steps(state) if getattr(state, step)), None)
    if rung is None or not state.settings.emergency:
        return _exhausted(state)
    left = {rung: getattr(state, rung) - 1}
    return replace(state, tried=(*state.tried, rung), **left), Press(rung)


def _steps(state: Recovery) -> tuple[Step, ...]:
    """Return the steps for an overflow in their order; a picture that is refused has only one."""
    refused = state.refused
    if refused is None:
        return LADDER
    entry: tuple[Step, ...] = (ENTRY[refused.kind],) if refused.kind in ENTRY else ()
    if not refused.is_overflow:
        return entry
    if refused.shows_media and state.compacted:
        return (*entry, "media", *LADDER)
    return (*entry, *LADDER)


def _exhausted(state: Recovery) -> tuple[Recovery, Action]:
    done = ", ".join(state.tried) or "nothing"
    if state.refused is None:
        ended = Stop("unknown", f"the compaction before the request failed; tried: {done}", "compaction_failed")
        return replace(state, ended=ended), ended
    return _stopped(state, state.refused, "exhausted", f"nothing is left that would make it smaller; tried: {done}")


def _summary_stopped(state: Recovery, event: Useless) -> tuple[Recovery, Action]:
    """Return the end of a run whose summary could not be asked for: [C] does not try anything else then."""
    why = SUMMARY_TOO_LARGE[event.outcome]
    if state.refused is not None:
        return _stopped(state, state.refused, "summary_too_large", why)
    ended = Stop(OVERFLOWED, why, "summary_too_large")
    return replace(state, ended=ended), ended


def _stopped(state: Recovery, event: Refused, rule: Rule, why: str) -> tuple[Recovery, Action]:
    kind = OVERFLOWED if event.is_overflow else event.kind
    ended = Stop(kind, why, rule)
    return replace(state, refused=event, ended=ended), ended
