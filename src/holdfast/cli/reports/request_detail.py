"""One request of a session: what its client sent, what went up in its place, what was decided for it, what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from holdfast.cli.commands.show import told
from holdfast.cli.output.terminal import clean, many, say_command, say_whole
from holdfast.cli.reports.branches import refusals
from holdfast.cli.reports.describe import when
from holdfast.cli.reports.history import SHORT, Log, acting, edits_shown, folded
from holdfast.cli.reports.request_size import Measured, about, as_asked, ended, lacking, measured, requested
from holdfast.config import Configuration
from holdfast.errors import UnknownId
from holdfast.planning import budget as guard
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import project
from holdfast.state.costs import known_dollars
from holdfast.state.entries import UNANSWERED, Answer, Decision, Entry, Failure, Request, Said, Usage
from holdfast.store.base import SessionInfo

OF_REQUESTS = (Request, Answer, Failure)
"""Entries that are a request, or what became of one."""


class Decided(Struct, frozen=True, omit_defaults=True):
    """A decision or compaction that a request repeats, and the tokens that its request lacks by it."""

    entry: str
    kind: str
    rules: dict[str, int]
    """How many edits of each rule are of messages that the request shows."""
    saves: int
    told: str


class Sent(Struct, frozen=True, omit_defaults=True):
    """A request. Tokens are as the provider counted what went up, where that is believed, else estimates."""

    session: str
    request: str
    at: int | None
    model: str
    policy: str
    window: int
    """0 where it was sent to nobody."""
    messages: int
    tokens: int
    """As its client sent it: what went up and an estimate of what that lacked; of its messages, where none went up."""
    shown: int
    shown_tokens: int
    """Messages and tokens that went up; none where it was sent to nobody."""
    usage: Usage | None
    """What the provider told of it; nothing where it told nothing."""
    dollars: float | None
    """Nothing where ``usage`` is."""
    decided: tuple[Decided, ...] = ()
    """What was decided for it."""
    standing: tuple[Decided, ...] = ()
    """What had been decided before, and was done again."""
    refused: tuple[str, ...] = ()
    """How requests before it, with the same words, were refused as too large."""
    stop: str = ""
    failure: str = ""
    """Why it was not answered."""
    counted: bool = False
    """Whether the provider counted what went up, and is believed."""


def request_of(log: Log, entry: Entry) -> int:
    """Return where in ``log`` the request is that ``entry`` is, or that it tells the end of.

    That is where ``entry`` itself is, where it tells why what was said behind the last answer was sent to nobody.
    """
    at = log.entries.index(entry)
    found = next((place for place in range(at, -1, -1) if isinstance(log.entries[place].body, Request)), None)
    since = log.entries[at if found is None else found + 1 : at]
    if _is_unanswered(entry) and (found is None or any(isinstance(one.body, Said | Answer) for one in since)):
        return at
    if found is None:
        raise UnknownId(f"no request is recorded before entry {entry.id[:SHORT]}; holdfast show --all lists the log")
    return found


def _is_unanswered(entry: Entry) -> bool:
    return isinstance(entry.body, Failure) and entry.body.kind == UNANSWERED


def sent(info: SessionInfo, log: Log, at: int, known: Configuration) -> Sent:
    """Return the request at place ``at`` of ``log``."""
    entry, branch, end = log.entries[at], requested(log.entries, at), ended(log.entries[at + 1 :])
    if not isinstance(entry.body, Request):
        return _unsent(info, entry, branch)
    answer = end.body if end is not None and isinstance(end.body, Answer) else None
    usage = answer.usage if answer is not None and answer.usage.input else None
    place, settings = as_asked(info, branch, known)
    size = measured(branch, place, settings)
    before = {id_ for id_, _ in Branch.build(log.entries[: _begin(log.entries, at)]).law}
    law = tuple(_in_force(branch, size))
    return Sent(
        session=info.key,
        request=entry.id,
        at=entry.at,
        model=entry.body.model,
        policy=branch.policy or "holdfast",
        window=guard.in_force(place, branch, settings).limits.window,
        messages=len(branch.slots),
        tokens=size.tokens + size.of(lacking(branch)),
        shown=len(project(branch)),
        shown_tokens=size.tokens,
        decided=tuple(one for one in law if one.entry not in before),
        standing=tuple(one for one in law if one.entry in before),
        refused=tuple(_refused(log.entries, _begin(log.entries, at), at)),
        usage=usage,
        dollars=None if usage is None else known_dollars(usage, place.prices),
        stop=answer.stop if answer is not None else "",
        failure=_why_not(end),
        counted=size.is_counted,
    )


def _unsent(info: SessionInfo, entry: Entry, branch: Branch) -> Sent:
    """Return a request that was sent to nobody, which ``entry`` tells of: its messages are what is known of it."""
    return Sent(
        session=info.key,
        request=entry.id,
        at=entry.at,
        model=branch.model or info.model or "",
        policy=branch.policy or "holdfast",
        window=0,
        messages=len(branch.slots),
        tokens=branch.sums[-1] if len(branch.slots) else 0,
        shown=0,
        shown_tokens=0,
        usage=None,
        dollars=None,
        failure=entry.body.reason if isinstance(entry.body, Failure) else "",
    )


def _in_force(branch: Branch, size: Measured) -> Iterator[Decided]:
    """Yield what the request repeats, the oldest first; of compactions the newest stands for all."""
    for id_, body in acting(branch):
        there = edits_shown(branch, body)
        rules, edits = Counter(edit.rule for edit in there), size.of(sum(edit.saves for edit in there))
        if isinstance(body, Decision):
            words = ", ".join(f"{rule} {count:,}" for rule, count in rules.items())
            yield Decided(id_, "decision", dict(rules), edits, f"{words}: {about(edits)} tokens less")
        elif body == branch.compaction:
            yield Decided(id_, "compaction", dict(rules), edits + size.of(folded(branch)), told(body, size))


def _begin(entries: Sequence[Entry], at: int) -> int:
    """Return the first entry behind the answer before the request at ``at``."""
    return next((place + 1 for place in range(at - 1, -1, -1) if isinstance(entries[place].body, Answer)), 0)


def _why_not(ended: Entry | None) -> str:
    """Return why a request that ended so was not answered; empty where it was."""
    if ended is None:
        return "nothing tells that it was answered"
    return f"{ended.body.kind}: {ended.body.reason}" if isinstance(ended.body, Failure) else ""


def _refused(entries: Sequence[Entry], start: int, stop: int) -> list[str]:
    """Return how a provider refused the requests from ``start`` to ``stop``; what only teaches is no refusal."""
    known = refusals(entries)
    return [one.body.reason for one in entries[start:stop] if isinstance(one.body, Failure) and one.id in known]


# -- in words ----------------------------------------------------------------------------------------------------------


def say(out: Any, found: Sent, session: str) -> None:
    """Print ``found``; ``session`` is how its session is called in commands."""
    from rich.text import Text

    head = f"request {clean(found.request)[:SHORT]} {when(found.at)} to {clean(found.model) or 'an unnamed model'}"
    out.print(Text(" ".join(head.split()), "bold"))
    came = f"as its client sent it: {many(found.messages, 'message')}, {as_sent(found)} tokens"
    if not found.window:
        say_whole(out, Text(f"{came} without system and tools"))
        say_whole(out, Text(f"sent to nobody: {clean(found.failure)}", "red"))
        return
    share = found.shown_tokens / max(1, found.window)
    say_whole(out, Text(came))
    told = f"as it went up: {many(found.shown, 'message')}, {as_shown(found)} tokens"
    say_whole(out, Text(f"{told}, {share:.1%} of a window of {found.window:,}"))
    for why in found.refused:
        say_whole(out, Text(f"refused before: {clean(why)}", "red"))
    _say_law(out, f"decided for it by policy {clean(found.policy)}", found.decided)
    _say_law(out, "decided before, and done again", found.standing)
    if not (found.decided or found.standing):
        out.print("nothing was done to it: it went up as it came")
    say_whole(out, Text(_cost(found)))
    if found.decided or found.standing:
        request = clean(found.request)[:SHORT]
        say_command(out, Text(f"the whole change: holdfast diff {request}", style="dim"))
        say_command(out, Text(f"what it held: holdfast context {request}", style="dim"))
        say_command(out, Text(f"undo one: holdfast undo {session} ID", style="dim"))


def as_sent(found: Sent) -> str:
    """Return how large a request was as its client sent it: what was taken from it nobody counted."""
    return about(found.tokens, is_counted=found.counted and found.tokens == found.shown_tokens)


def as_shown(found: Sent) -> str:
    """Return how large a request was as it went up."""
    return about(found.shown_tokens, is_counted=found.counted)


def _say_law(out: Any, head: str, law: Sequence[Decided]) -> None:
    from rich.text import Text

    if law:
        out.print(Text(f"{head}:"))
    for one in law:
        say_whole(out, Text(f"  {clean(one.entry)[:SHORT]} {clean(one.told)}", "yellow"))


def _cost(found: Sent) -> str:
    if found.failure:
        return f"not answered: {clean(found.failure)}"
    used, ended = found.usage, f", ended with {clean(found.stop, 40)}" if found.stop else ""
    if used is None:
        return f"what it cost is not known: its answer tells no usage{ended}"
    cached = f" ({used.cache_read:,} from the cache, {used.cache_write:,} written to it)"
    money = "no price of the model is known" if found.dollars is None else f"${found.dollars:,.4f}"
    doubt = "" if found.counted else ", by a count that is not taken for its size"
    return f"what it cost{doubt}: {used.input:,} tokens in{cached}, {used.output:,} out, {money}{ended}"
