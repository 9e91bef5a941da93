"""One compaction by a plugin of a coding agent, beside two rivals and the compaction that the agent has itself.

Usage: uv run --group rivals --extra exact python bench/host_compaction.py FOLDER…
         [--policy NAME…] [--sizes 80000,200000,500000] [--rules N] [--runs N] [--json] [--check] [--write]

FOLDER holds recorded sessions of Claude Code (``*.jsonl``), of which all are taken. Each policy compacts the same
session at the same moment (``host_policies.py`` says how each is called):

- *recorded*: where Claude Code compacted. At the second one of a session every policy goes on from what it made at the
  first, as in real use.
- *80,000, 200,000, 500,000*: where the request would have so many tokens, with all compactions undone. Where no session
  of a repository is as long, all its sessions are joined, their ids renamed: *constructed*, for time and cost only.

The *built-in* compaction is what the file has: the recorded summary and the messages kept beside it. At a moment where
none was recorded, the session's first recorded summary (else the first of all) stands for its size and cost, and is not
scored. The file does not have the files that Claude Code reads again behind its summary; *built-in, by its usage* is as
large as the recorded usage of the first request says, less that of the session's first request.

All tokens are counted by one tokenizer that no policy uses, calibrated on the session's recorded usage
(docs/metrics.md). Columns:

- *seconds*: from JSON to JSON in a process that is running, the median of ``--runs``, of fewer if they take over two
  seconds; of the built-in one the time between the recorded lines before and after, for recorded moments;
- *tokens after*: the messages that take the place of the context, without system prompt and tools;
- *first request*: what it writes to the cache, and its cost; *ten requests*: the cost of the next ten recorded ones.
  System prompt and tools have ``SETUP_TOKENS`` and are cached; the cache lives by the recorded times. *With the call*
  adds what the built-in one pays its model for the summary: the context at the price of the cache, and its output;
- *facts*: of what the agent uses again within 30 answers, the share that is there with what was said about it
  (``fact_recall``, docs/metrics.md).

User rules are those of ``rules_over_compactions.py``, in a loop of compactions as a host makes them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeVar

from host_policies import OURS, HostPolicy, list_policies
from host_rules import RuleFigures, measure_rules
from large_windows import join_sessions
from msgspec import Struct
from msgspec.structs import asdict
from ruler_results import compute_code_digest, fill_page_part, format_table
from rules_over_compactions import CHECKS

from holdfast.config import get_target
from holdfast.formats import read_recording
from holdfast.formats.base import Recording, get_branch_entries
from holdfast.formats.claude_code.read import FORMAT
from holdfast.formats.common.lines import parse_millis
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.replay.cache import SETUP_BREAKPOINT, CacheBlock, CacheUse, SimulatedCache, price_request
from holdfast.replay.measure import MeasurementSettings, SessionStudy
from holdfast.replay.recall_at_cuts import SessionCut
from holdfast.replay.repositories import name_repository
from holdfast.replay.session import AnswerStep, ReplaySession, make_replay_session
from holdfast.replay.tokenizer import get_tokenizer
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, MessageEntry

API, MODEL = "anthropic", "claude-sonnet-4-5"
SETUP_TOKENS = 16_000
NEXT_REQUESTS = 10
SIZES = (80_000, 200_000, 500_000)
WINDOWS = (200_000, 1_000_000)
"""Windows of Claude Code; a context is compacted in the smallest that holds it."""
RECORDED = "recorded"
BUILT_IN, BUILT_IN_BY_USAGE = "built-in", "built-in, by its usage"
PAGE_PART = "host-compaction"
TOKENS_GOAL_SIZE, MOST_TOKENS = 200_000, 1.5
"""Size at which tokens have a goal: what is left is at most so many times what the built-in compaction leaves."""
MOST_SECONDS_TIMED = 2.0
"""Seconds after which a slow policy is not run again; a median of fewer runs is then reported."""
SLOW_POLICY = "specialist-v3"
"""Left out of the test of rules, which would take it an hour. It touches no text of the user either."""
_COMPACT_COMMAND = "<command-name>/compact</command-name>"
T = TypeVar("T")


# -- sessions and moments ----------------------------------------------------------------------------------------------


class BuiltIn(Struct, frozen=True):
    """A compaction of Claude Code as the file has it."""

    position: int
    """Messages of the session before it, compactions undone."""
    summary: SizedMessage
    kept: tuple[SizedMessage, ...]
    seconds: float | None
    """Time between the recorded lines before and after it, if they tell how long the user waited."""
    restored_tokens: int
    """What the first request after it held beside summary and kept messages, by its recorded usage."""


class Session(Struct, frozen=True):
    """A session, recorded or joined from recorded ones."""

    name: str
    repository: str
    study: SessionStudy
    built_ins: tuple[BuiltIn, ...] = ()
    is_constructed: bool = False

    @property
    def steps(self) -> Sequence[AnswerStep]:
        """The answers of the model, in order."""
        return self.study.session.steps

    def list_sums(self) -> list[int]:
        """Return the tokens of all messages before each position."""
        return list(accumulate(map(self.study.count_message, self.study.session.messages), initial=0))


class Moment(Struct, frozen=True):
    """A place in a session at which every policy compacts."""

    label: str
    session: Session
    position: int
    window: int
    built_in: BuiltIn
    """What stands for the built-in compaction."""
    is_recorded: bool
    """Whether that is the one recorded here, so that it may be scored."""


def list_sessions(folders: Sequence[Path]) -> list[Session]:
    """Return the sessions of Claude Code below ``folders``; raise ``SystemExit`` if there are none."""
    sessions = []
    for folder in folders:
        for file in sorted(folder.rglob("*.jsonl")):
            data = file.read_bytes()
            recording = read_recording(data)
            if recording.format == FORMAT:
                sessions.append(read_session(file, data, recording))
    if not sessions:
        raise SystemExit(f"{', '.join(map(str, folders))}: no sessions of Claude Code (*.jsonl); give their folder")
    return sessions


def read_session(file: Path, data: bytes, recording: Recording) -> Session:
    """Return a recorded session with the compactions in it."""
    session = make_replay_session(recording, API)
    study = make_study(session)
    repository, _ = name_repository(recording.cwd, str(file))
    return Session(file.stem, repository, study, tuple(find_built_ins(data, recording, study)))


def make_study(session: ReplaySession) -> SessionStudy:
    """Prepare a session for measuring."""
    name, counter = get_tokenizer()
    return SessionStudy(session, MeasurementSettings(WINDOWS[-1], SETUP_TOKENS, get_target(API, MODEL), name, counter))


def find_built_ins(data: bytes, recording: Recording, study: SessionStudy) -> Iterator[BuiltIn]:
    """Yield the compactions that Claude Code made in a session."""
    messages = study.session.messages
    blocked = find_blocked_seconds(data)
    position = 0
    for entry in get_branch_entries(recording):
        if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
            position += 1
        elif isinstance(entry.body, CompactionEntry) and entry.body.summary is not None:
            summary = build_sized_message(entry.body.summary)
            kept = messages[entry.body.first_kept : position]
            restored = estimate_restored_tokens(study, position, [summary, *kept])
            yield BuiltIn(position, summary, kept, blocked.get(entry.time_ms or 0), restored)


def find_blocked_seconds(data: bytes) -> dict[int, float]:
    """Return the seconds that each recorded compaction took, by the time of its line in milliseconds.

    It begins with the command of the user, or else with the last message before it. After an answer without calls the
    user may have been away, so nothing is known.
    """
    lines = [json.loads(line) for line in data.splitlines() if line.strip()]
    blocked: dict[int, float] = {}
    for number, line in enumerate(lines):
        if line.get("subtype") != "compact_boundary":
            continue
        ended_at = parse_millis(line["timestamp"])
        started_at = _find_compact_command(lines[number + 1 : number + 6]) or _find_last_message(lines[:number])
        if ended_at is not None and started_at is not None and ended_at > started_at:
            blocked[ended_at] = (ended_at - started_at) / 1000
    return blocked


def _find_compact_command(lines: Sequence[dict[str, Any]]) -> int | None:
    """Return the time of the ``/compact`` that a compaction answers; Claude Code writes it behind the summary."""
    for line in lines:
        if _COMPACT_COMMAND in json.dumps(line.get("message", "")):
            return parse_millis(line["timestamp"])
    return None


def _find_last_message(lines: Sequence[dict[str, Any]]) -> int | None:
    for line in reversed(lines):
        if line.get("isSidechain") or line.get("type") not in ("user", "assistant"):
            continue
        has_call = '"type": "tool_use"' in json.dumps(line["message"].get("content"))
        return parse_millis(line["timestamp"]) if line["type"] == "user" or has_call else None
    return None


def estimate_restored_tokens(study: SessionStudy, position: int, shown: Sequence[SizedMessage]) -> int:
    """Return what the first request after a compaction held beside ``shown``, by its recorded usage.

    System prompt, tools and what else every request has are those of the session's first request.
    """
    steps = [step for step in study.session.steps if step.usage is not None]
    after = next((step for step in steps if step.index >= position), None)
    if after is None or after.usage is None or steps[0].usage is None:
        return 0
    count, messages = study.count_message, study.session.messages
    constant = steps[0].usage.input - sum(map(count, messages[: steps[0].index]))
    known = sum(map(count, shown)) + sum(map(count, messages[position : after.index]))
    return max(0, after.usage.input - constant - known)


def list_recorded_moments(session: Session) -> list[Moment]:
    """Return the moments at which Claude Code compacted and at least one request followed."""
    last = session.steps[-1].index
    return [
        Moment(RECORDED, session, built_in.position, WINDOWS[0], built_in, is_recorded=True)
        for built_in in session.built_ins
        if built_in.position <= last
    ]


def list_sized_moments(sessions: Sequence[Session], size: int) -> list[Moment]:
    """Return a moment with a request of ``size`` tokens for each session that is as long.

    For a repository without one its sessions are joined, as often as it takes.
    """
    fallback = next(built_in for session in sessions for built_in in session.built_ins)
    moments = []
    for repository in dict.fromkeys(session.repository for session in sessions):
        own = [session for session in sessions if session.repository == repository]
        found = [(session, position) for session in own if (position := find_position(session, size)) is not None]
        if not found:
            joined = join_repository(own, size)
            position = None if joined is None else find_position(joined, size)
            found = [] if joined is None or position is None else [(joined, position)]
        for session, position in found:
            built_in = next(iter(session.built_ins or [one for other in own for one in other.built_ins]), fallback)
            window = next(window for window in WINDOWS if window >= size)
            moments.append(Moment(f"{size:,}", session, position, window, built_in, is_recorded=False))
    return moments


def find_position(session: Session, size: int) -> int | None:
    """Return the last answer whose request has at most ``size`` tokens; None if too few requests follow."""
    sums = session.list_sums()
    if SETUP_TOKENS + sums[-1] < size:
        return None
    indexes = [step.index for step in session.steps]
    fitting = [index for index in indexes if SETUP_TOKENS + sums[index] <= size]
    has_next = len(indexes) - len(fitting) >= NEXT_REQUESTS
    return fitting[-1] if fitting and has_next else None


def join_repository(sessions: Sequence[Session], size: int) -> Session | None:
    """Return the sessions of a repository as one of more than ``size`` tokens; None if they hold next to nothing."""
    tokens = sum(session.list_sums()[-1] for session in sessions)
    if tokens * MAX_COPIES < size:
        return None
    copies = -(-(size + MARGIN_TOKENS) // tokens)
    study = make_study(join_sessions([session.study.session for session in sessions], copies))
    # The joined session has no usage of its own.
    study.factor = mean(session.study.factor for session in sessions)
    built_ins = [built_in for session in sessions for built_in in session.built_ins]
    name = f"{sessions[0].repository} joined"
    return Session(name, sessions[0].repository, study, tuple(built_ins[:1]), is_constructed=True)


MAX_COPIES = 5
"""How often the sessions of a repository are joined at most. A repository of a few thousand tokens is left out."""
MARGIN_TOKENS = 60_000
"""Tokens that a joined session is longer than its moment, so that requests follow."""


# -- figures -----------------------------------------------------------------------------------------------------------


class Price(Struct, frozen=True):
    """What the requests after a compaction cost, in dollars."""

    call: float
    """The call that wrote the summary; 0 for policies that ask no model."""
    first: float
    first_write: int
    """Tokens that the first request writes to the cache."""
    ten: float
    """The first and the nine after it."""


class Figures(Struct, frozen=True):
    """One policy at one moment."""

    label: str
    policy: str
    session: str
    repository: str
    is_constructed: bool
    tokens_before: int
    tokens_after: int
    price: Price
    seconds: float | None = None
    runs: int = 0
    is_used: bool = True
    facts: tuple[int, int] | None = None
    """Facts that are there, of those that are used again; None if they are not scored."""


def price_requests(
    moment: Moment,
    context: Sequence[SizedMessage],
    after: Sequence[SizedMessage],
    *,
    summary_tokens: int = 0,
    restored_tokens: int = 0,
) -> Price:
    """Return what the requests after a compaction cost.

    Before it the cache holds the last request of ``context``. With ``summary_tokens`` a model is asked for a summary of
    so many tokens, by a request that ends with the whole context.
    """
    study, position = moment.session.study, moment.position
    target = study.setting.target
    cache = SimulatedCache(target.cache_rules)
    setup = (b"setup", SETUP_TOKENS)
    messages = study.session.messages

    def send(request: Sequence[SizedMessage], at: int | None, extra: Sequence[CacheBlock] = ()) -> CacheUse:
        blocks = [*extra]
        for sized_message in request:
            blocks += study.get_blocks(sized_message)
        return cache.send_request(blocks, setup, [SETUP_BREAKPOINT, *_list_breakpoints(len(blocks))], at)

    steps = moment.session.steps
    number = next(number for number, step in enumerate(steps) if step.index >= position)
    following = steps[number : number + NEXT_REQUESTS]
    if number:
        unseen = position - steps[number - 1].index
        send(context[: len(context) - unseen], steps[number - 1].at)
    call = 0.0
    if summary_tokens:
        call = price_request(send(context, following[0].at), summary_tokens, target.prices)
    extra = [(b"restored", restored_tokens)] if restored_tokens else []
    uses: list[CacheUse] = []
    costs: list[float] = []
    for step in following:
        uses.append(send([*after, *messages[position : step.index]], step.at, extra))
        costs.append(price_request(uses[-1], study.count_message(messages[step.index]), target.prices))
    return Price(call, costs[0], uses[0].write, sum(costs))


def _list_breakpoints(count: int) -> list[int]:
    """Return breakpoints that find the request before within the look-back of 20 blocks, as clients set them."""
    return [position for position in (count - 19, count - 1) if position >= 0]


def measure_built_in(moment: Moment, context: Sequence[SizedMessage]) -> list[Figures]:
    """Return the figures of the built-in compaction: as the file has it, and as large as its usage says."""
    built_in, study = moment.built_in, moment.session.study
    kept = built_in.kept if moment.is_recorded else ()
    after = [built_in.summary, *kept]
    tokens = sum(map(study.count_message, after))
    summary_tokens = study.count_message(built_in.summary)
    rows = []
    for name, restored in ((BUILT_IN, 0), (BUILT_IN_BY_USAGE, built_in.restored_tokens)):
        price = price_requests(moment, context, after, summary_tokens=summary_tokens, restored_tokens=restored)
        is_scored = moment.is_recorded and name == BUILT_IN
        rows.append(
            Figures(
                moment.label,
                name,
                moment.session.name,
                moment.session.repository,
                moment.session.is_constructed,
                sum(map(study.count_message, context)),
                tokens + restored,
                price,
                built_in.seconds if is_scored else None,
                int(is_scored),
                facts=score_facts(moment, after) if is_scored else None,
            )
        )
    return rows


def measure_policy(
    moment: Moment, policy: HostPolicy, context: Sequence[SizedMessage], runs: int
) -> tuple[Figures, list[SizedMessage]]:
    """Return the figures of one policy, and the context that it leaves."""
    study = moment.session.study
    data = policy.encode(context, moment.window)
    answer, seconds, count = time_median(lambda: policy.run(data), runs)
    compacted = policy.decode(context, answer)
    after = list(compacted.messages)
    figures = Figures(
        moment.label,
        policy.name,
        moment.session.name,
        moment.session.repository,
        moment.session.is_constructed,
        sum(map(study.count_message, context)),
        sum(map(study.count_message, after)),
        price_requests(moment, context, after),
        seconds,
        count,
        compacted.is_used,
        None if moment.session.is_constructed else score_facts(moment, after),
    )
    return figures, after


def time_median(call: Callable[[], T], runs: int) -> tuple[T, float, int]:
    """Return the result of ``call``, the median of its seconds, and how often it ran."""
    seconds: list[float] = []
    while True:
        started_at = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - started_at)
        if len(seconds) >= runs or sum(seconds) > MOST_SECONDS_TIMED:
            return result, median(seconds), len(seconds)


def score_facts(moment: Moment, context: Sequence[SizedMessage]) -> tuple[int, int]:
    """Return how many of the facts that the agent uses again ``context`` holds, and how many there are."""
    study = moment.session.study
    cut = SessionCut(
        study.messages, moment.position, study.count_text, lookup=study.dependencies.lookup, steps=study.steps
    )
    score = cut.score_context([sized_message.message for sized_message in context])
    return score.kept_facts, score.dependencies


def measure_moments(
    sessions: Sequence[Session], policies: Sequence[HostPolicy], sizes: Sequence[int], runs: int
) -> Iterator[Figures]:
    """Yield the figures of each policy at each moment."""
    for session in sessions:
        moments = list_recorded_moments(session)
        for policy in policies:
            yield from _measure_in_turn(moments, policy, runs)
        context: list[SizedMessage] = []
        start = 0
        for moment in moments:
            context += session.study.session.messages[start : moment.position]
            yield from measure_built_in(moment, context)
            context, start = [moment.built_in.summary, *moment.built_in.kept], moment.position
    for size in sizes:
        for moment in list_sized_moments(sessions, size):
            context = list(moment.session.study.session.messages[: moment.position])
            yield from measure_built_in(moment, context)
            for policy in policies:
                yield measure_policy(moment, policy, context, runs)[0]


def _measure_in_turn(moments: Sequence[Moment], policy: HostPolicy, runs: int) -> Iterator[Figures]:
    """Yield the figures of a policy that goes on from what it made at the moment before."""
    context: list[SizedMessage] = []
    start = 0
    for moment in moments:
        context += moment.session.study.session.messages[start : moment.position]
        figures, context = measure_policy(moment, policy, context, runs)
        start = moment.position
        yield figures


# -- report ------------------------------------------------------------------------------------------------------------


class PooledFigures(Struct, frozen=True):
    """One policy at all moments of a label: the means of its repositories, each of which counts once."""

    label: str
    policy: str
    moments: int
    repositories: int
    constructed: int
    used: int
    seconds: float | None
    """The median over the moments."""
    tokens_before: float
    tokens_after: float
    first_write: float
    first: float
    ten: float
    call: float
    facts: float | None

    @property
    def total(self) -> float:
        """Dollars of the ten requests and of the call for the summary."""
        return self.ten + self.call


def pool_figures(rows: Sequence[Figures]) -> list[PooledFigures]:
    """Return the figures of each label and policy."""
    pools = []
    for label, policy in dict.fromkeys((row.label, row.policy) for row in rows):
        own = [row for row in rows if (row.label, row.policy) == (label, policy)]
        seconds = [row.seconds for row in own if row.seconds is not None]

        def average(get: Callable[[Figures], float], own: Sequence[Figures] = own) -> float:
            return mean(mean(map(get, group)) for group in _group_by_repository(own))

        pools.append(
            PooledFigures(
                label,
                policy,
                len(own),
                len(_group_by_repository(own)),
                sum(row.is_constructed for row in own),
                sum(row.is_used for row in own),
                median(seconds) if seconds else None,
                average(lambda row: row.tokens_before),
                average(lambda row: row.tokens_after),
                average(lambda row: row.price.first_write),
                average(lambda row: row.price.first),
                average(lambda row: row.price.ten),
                average(lambda row: row.price.call),
                _pool_facts(own),
            )
        )
    return pools


def _group_by_repository(rows: Sequence[Figures]) -> list[list[Figures]]:
    groups: dict[str, list[Figures]] = {}
    for row in rows:
        groups.setdefault(row.repository, []).append(row)
    return list(groups.values())


def _pool_facts(rows: Sequence[Figures]) -> float | None:
    """Return the share of facts that are there: the mean of the repositories that need any."""
    shares = []
    for group in _group_by_repository(rows):
        counts = [row.facts for row in group if row.facts is not None]
        needed = sum(total for _, total in counts)
        if needed:
            shares.append(sum(kept for kept, _ in counts) / needed)
    return mean(shares) if shares else None


class Goal(Struct, frozen=True):
    """A goal, and how far it is reached."""

    text: str
    ours: float
    most: float

    @property
    def is_reached(self) -> bool:
        """Whether ours is at most what it may be."""
        return self.ours <= self.most


def list_goals(pools: Sequence[PooledFigures]) -> list[Goal]:
    """Return the goals that our policy has beside the built-in compaction."""
    by_key = {(pool.label, pool.policy): pool for pool in pools}
    goals = []
    for (label, policy), built_in in by_key.items():
        ours = by_key.get((label, OURS))
        if policy not in (BUILT_IN, BUILT_IN_BY_USAGE) or ours is None:
            continue
        if label == f"{TOKENS_GOAL_SIZE:,}":
            most = MOST_TOKENS * built_in.tokens_after
            goals.append(Goal(f"tokens after at {label}, {policy} + 50 %", ours.tokens_after, most))
        if label != RECORDED:
            goals.append(Goal(f"ten requests and the call at {label}, {policy}", ours.total, built_in.total))
    return goals


def time_empty_process(runs: int) -> float:
    """Return the median seconds of ``python -c pass``: what any new process costs here."""
    command = [sys.executable, "-c", "pass"]
    return time_median(lambda: subprocess.run(command, check=True), runs)[1]


def render_page(
    sessions: Sequence[Session], rows: Sequence[Figures], rules: Sequence[RuleFigures], empty_process: float
) -> str:
    """Return the part of docs/results.md."""
    names = ", ".join(f"{session.name[:12]} ({session.repository})" for session in sessions)
    subject = (
        f"Sessions: {names}. Tokenizer {get_tokenizer()[0]}, prices of {MODEL}. `python -c pass` in the same run: "
        f"{empty_process * 1e3:.0f} ms. Holdfast {version('holdfast')}, code {compute_digest()}."
    )
    parts = [f"{subject}\n"]
    pools = pool_figures(rows)
    for label in dict.fromkeys(pool.label for pool in pools):
        parts.append(_render_label(label, [pool for pool in pools if pool.label == label]))
    goals: list[tuple[str, ...]] = [
        (goal.text, _format_number(goal.ours), _format_number(goal.most), "reached" if goal.is_reached else "missed")
        for goal in list_goals(pools)
    ]
    parts.append("*Goals*\n\n" + format_table(("goal", "holdfast", "at most", ""), goals))
    if rules:
        parts.append("*User rules*\n\n" + render_rules(rules))
    return "\n".join(parts)


def _render_label(label: str, pools: Sequence[PooledFigures]) -> str:
    head = (
        "policy",
        "seconds",
        "tokens after",
        "first request writes",
        "first request $",
        "ten requests $",
        "with the call $",
        "facts",
    )
    lines: list[tuple[str, ...]] = []
    for pool in pools:
        name = f"**{pool.policy}**" if pool.policy == OURS else pool.policy
        if pool.used < pool.moments:
            name += f" (not taken in {pool.moments - pool.used} of {pool.moments})"
        lines.append(
            (
                name,
                "not measured" if pool.seconds is None else f"{pool.seconds:.3f}",
                f"{pool.tokens_after:,.0f}",
                f"{pool.first_write:,.0f}",
                f"{pool.first:.3f}",
                f"{pool.ten:.3f}",
                f"{pool.total:.3f}",
                "-" if pool.facts is None else f"{pool.facts:.3f}",
            )
        )
    one = pools[0]
    moments = f"{one.moments} moments of {one.repositories} repositories"
    if one.constructed:
        moments += f", {one.constructed} of them constructed"
    title = "Where Claude Code compacted" if label == RECORDED else f"At {label} tokens"
    before = f"{one.tokens_before:,.0f} tokens of messages before"
    return f"*{title}: {moments}, {before}*\n\n{format_table(head, lines)}"


def render_rules(rules: Sequence[RuleFigures]) -> str:
    """Return the table of what became of the user's rules."""
    head = ("policy", "window", *(f"kept after {check}" for check in CHECKS), "over the window", "handed over")
    lines = []
    for row in rules:
        shares = [f"{row.kept[check]} of {row.in_force[check]}" if row.in_force[check] else "-" for check in CHECKS]
        over = f"{row.over} of {sum(row.sessions.values())}"
        handed_over = f"{row.handed_over} of {row.compactions}"
        lines.append((row.policy, f"{row.window:,}", *shares, over, handed_over))
    return format_table(head, lines)


def compute_digest() -> str:
    """Return a digest of this benchmark and of the code that decides what a compaction keeps."""
    digest = blake2b(compute_code_digest(Path(__file__)).encode(), digest_size=6)
    for name in ("host_policies.py", "host_rules.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


def _format_number(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3f}"


def print_figures(rows: Sequence[Figures]) -> None:
    """Print a line for each policy at each moment, and one for their pool."""
    for row in rows:
        seconds = "-" if row.seconds is None else f"{row.seconds:.3f}"
        facts = "-" if row.facts is None else f"{row.facts[0]}/{row.facts[1]}"
        print(
            f"{row.label:>9} {row.session[:18]:<18} {row.policy:<24} {seconds:>7} s  {row.tokens_before:>9,} ->"
            f" {row.tokens_after:>8,}  writes {row.price.first_write:>8,}  ${row.price.first:.3f}  ten"
            f" ${row.price.ten:.3f}  call ${row.price.call:.3f}  facts {facts}{'' if row.is_used else '  not used'}"
        )
    print()
    for pool in pool_figures(rows):
        facts = "-" if pool.facts is None else f"{pool.facts:.3f}"
        print(
            f"{pool.label:>9} {pool.policy:<24} {pool.tokens_after:>9,.0f}  ten ${pool.ten:.3f}  with the call"
            f" ${pool.total:.3f}  facts {facts}"
        )


def main() -> int:
    """Measure and print; with ``--check``, exit 1 if a goal is missed or our policy lost a rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--policy", action="append", help="only policies whose name begins so; may be repeated")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="tokens of a request, separated by commas")
    parser.add_argument("--rules", type=int, default=20, metavar="N", help="sessions for the user's rules")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/results.md")
    args = parser.parse_args()
    policies = list_policies()
    if args.policy:
        policies = [policy for policy in policies if policy.name.startswith(tuple(args.policy))]
    sessions = list_sessions(args.folders)
    sizes = [int(size) for size in args.sizes.split(",") if size]
    rows = list(measure_moments(sessions, policies, sizes, args.runs))
    quick_policies = [policy for policy in policies if SLOW_POLICY not in policy.name]
    rules = measure_rules(quick_policies, args.rules) if args.rules else []
    goals = list_goals(pool_figures(rows))
    if args.json:
        print(json.dumps([asdict(row) | {"price": asdict(row.price)} for row in rows]))
    else:
        print_figures(rows)
        for goal in goals:
            state = "reached" if goal.is_reached else "MISSED"
            print(f"{state}: {goal.text}: {_format_number(goal.ours)}, at most {_format_number(goal.most)}")
        for row in rules:
            print(row.policy, row.window, dict(row.kept), "of", dict(row.in_force), "over", row.over)
    if args.write:
        fill_page_part(PAGE_PART, render_page(sessions, rows, rules, time_empty_process(args.runs)))
    lost = [row for row in rules if row.policy == OURS and row.kept != row.in_force]
    return int(args.check and (bool(lost) or not all(goal.is_reached for goal in goals)))


if __name__ == "__main__":
    sys.exit(main())
