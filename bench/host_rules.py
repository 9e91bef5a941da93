"""Whether the user's rules survive twenty compactions as a host makes them; see ``host_compaction.py``.

The sessions are those of ``rules_over_compactions.py``. Here a host holds the conversation: before an answer for which
there is no room it hands all of it to a policy, and from then on holds what came back. So each compaction reads the one
before it as a text, and a policy has no other memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from host_policies import HostPolicy
from msgspec import Struct
from rules_over_compactions import CHECKS, FIRST_SEED, SETTINGS, Reading, Script, make_script, read_request

from holdfast.messages.sized_message import SizedMessage
from holdfast.replay.measure import compute_usable_window


class HostState(Struct):
    """A host's conversation right after a compaction."""

    context: list[SizedMessage]
    message_count: int
    """Messages of the session until now."""
    compactions: int
    handed_over: int
    """Compactions so far that the plugin leaves to the host's own summary; here its result is taken all the same."""
    is_over: bool
    """Whether a request is still over the window."""


class RuleFigures(Struct):
    """What one policy keeps of the user's rules in one window, over all sessions."""

    policy: str
    window: int
    in_force: dict[int, int]
    """Rules in force, by check: after so many compactions."""
    kept: dict[int, int]
    """How many of them stand in one text of the user, or in one quote of the user."""
    sessions: dict[int, int]
    """Sessions that got so far."""
    over: int
    """Requests over the window at the checks."""
    handed_over: int
    compactions: int
    lost: list[str]
    """The rules that were lost at the last check."""


def drive_host(script: Script, policy: HostPolicy, window: int, setup_tokens: int) -> Iterator[HostState]:
    """Yield the host's conversation after each compaction, until the session ends."""
    usable = compute_usable_window(window)
    state = HostState([], 0, 0, 0, is_over=False)
    tokens = setup_tokens
    while state.message_count < len(script.messages) or script.extend():
        message = script.messages[state.message_count]
        if message.message.role == "assistant" and tokens > usable:
            compacted = policy.compact(state.context, window)
            tokens_after = setup_tokens + sum(sized_message.tokens for sized_message in compacted.messages)
            if tokens_after < tokens:
                tokens = tokens_after
                state.context = list(compacted.messages)
                state.compactions += 1
                state.handed_over += not compacted.is_used
                state.is_over = tokens > window
                yield state
        state.context.append(message)
        state.message_count += 1
        tokens += message.tokens


def read_session(seed: int, policy: HostPolicy, window: int, setup_tokens: int) -> tuple[list[Reading], int]:
    """Return a reading for each check that the session is long enough for, and the compactions handed over."""
    script = make_script(seed, window)
    readings: list[Reading] = []
    handed_over = 0
    for state in drive_host(script, policy, window, setup_tokens):
        handed_over = state.handed_over
        if state.compactions == CHECKS[len(readings)]:
            reading = read_request(script, state.message_count, state.context, state.compactions)
            reading.is_over, reading.compactions = state.is_over, state.compactions
            readings.append(reading)
        if len(readings) == len(CHECKS):
            break
    return readings, handed_over


def measure_rules(policies: Sequence[HostPolicy], sessions: int) -> list[RuleFigures]:
    """Return the figures of each policy in each window of ``rules_over_compactions.py``."""
    rows = []
    for window, setup_tokens in SETTINGS:
        for policy in policies:
            rows.append(_measure_policy(policy, window, setup_tokens, sessions))
    return rows


def _measure_policy(policy: HostPolicy, window: int, setup_tokens: int, sessions: int) -> RuleFigures:
    in_force: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    reached: Counter[int] = Counter()
    figures = RuleFigures(policy.name, window, in_force, kept, reached, 0, 0, 0, [])
    for seed in range(FIRST_SEED, FIRST_SEED + sessions):
        readings, handed_over = read_session(seed, policy, window, setup_tokens)
        figures.handed_over += handed_over
        figures.compactions += readings[-1].compactions if readings else 0
        for reading in readings:
            reached[reading.check] += 1
            figures.over += reading.is_over
            in_force[reading.check] += _count(reading, "in_force")
            kept[reading.check] += _count(reading, "kept")
            if reading.check == CHECKS[-1]:
                figures.lost += reading.lost
    return figures


def _count(reading: Reading, what: str) -> int:
    return sum(number for key, number in reading.kept.items() if key.endswith(f"/{what}"))
