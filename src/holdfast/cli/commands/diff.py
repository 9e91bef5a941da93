"""``holdfast diff``: what the model saw before and after."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import Waiting, clean, console, json_option, many, say_json, say_line, say_whole
from holdfast.cli.places import opened, store_option
from holdfast.cli.reports.describe import session_line
from holdfast.cli.reports.history import SHORT, Log, entry_named, log_of, named, read_log, through
from holdfast.cli.reports.request_detail import OF_REQUESTS, as_sent, as_shown, request_of, sent
from holdfast.cli.reports.request_diff import Change, Comparison, compare, runs, sized
from holdfast.cli.reports.request_size import about, as_known_later, measured_in, requested
from holdfast.state.entries import Compaction, Decision, Entry, Request, Revoke
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast diff 4d56 ..e77b         # what decision e77b changed
  holdfast diff 4d56 120..          # the moment after message 120, and now
  holdfast diff 4d56 120..e77b --lines 20
  holdfast diff 9c41d7e2            # a request: as its client sent it, and as it went up
"""
_SIGNS = {"same": " ", "changed": "~", "hidden": "-", "new": "+", "back": "+"}
_STYLES = {"same": "dim", "changed": "yellow", "hidden": "red", "new": "green", "back": "green"}


class Side(Struct, frozen=True):
    """One of the two moments: its name, and the log up to there."""

    name: str
    log: Log


@click.command("diff", epilog=EXAMPLES)
@click.argument("session")
@click.argument("moments", metavar="[A..B]", required=False)
@click.option("--lines", type=Whole(0), default=4, show_default=True, help="How many lines of each change.")
@store_option
@json_option("both requests, message by message,")
def command(session: str, moments: str | None, lines: int, store: str | None, *, as_json: bool) -> None:
    """Show what the model saw before and after: replaced, hidden, said, back.

    SESSION is the beginning of an id. A and B are moments: just after the entry that a message's number, a label, or
    the beginning of an id names. ..B compares the moment before B with the one after it, A.. compares A with now.
    Without moments SESSION is the id of a request, as x-holdfast-request tells it, and what its client sent is compared
    with what went up. The size of B is that of the whole request, as holdfast context says it; that of A is by the same
    measure. Sizes with ~ are estimates, by what the provider counted in the session; others the provider counted.
    """
    asked = _asked(moments) if moments is not None else None
    with opened(store, readonly=True) as there, Waiting("comparing", wanted=not as_json):
        info, entry = named(there, session)
        log = read_log(there, info.key)
        if asked is not None:
            before, after = _sides(there, info.key, log, *asked)
        elif entry is not None:
            log = through(there, info.key, log, entry)
            if isinstance(entry.body, OF_REQUESTS):
                entry = _went_out(log.entries[request_of(log, entry)])
            before, after = _reduced(_until(there, info.key, log, entry))
        else:
            raise Stopped(_which(log))
        if asked is None and entry is not None and isinstance(entry.body, Request):
            found, sizes = _of_request(info, log, entry, compare(before.log, after.log))
        else:
            found, sizes = _of_moments(info, before, after)
    if as_json:
        told = {"session": info.key, "from": before.name, "to": after.name}
        say_json(told | msgspec.to_builtins(found))
    else:
        _say(found, info, (f"{before.name}: {sizes[0]}", f"{after.name}: {sizes[1]}"), lines)


def _which(log: Log) -> str:
    """Return what is said where no moments were given: the ones that somebody may have meant."""
    newest = [f"..{clean(id_)[:SHORT]} for what the newest decision changed" for id_, _ in log.branch.law[-1:]]
    told = ", ".join([*newest, "0.. for all since message 0"])
    return f"give two moments behind the session: {told}, A..B for what is between; only a request's id stands alone"


def _went_out(entry: Entry) -> Entry:
    """Return ``entry``, a request; ``Stopped`` for one that was sent to nobody."""
    if isinstance(entry.body, Request):
        return entry
    short = clean(entry.id[:SHORT])
    raise Stopped(f"request {short} was sent to nobody, so nothing stands beside it: holdfast why {short} tells why")


def _asked(moments: str) -> tuple[str, str]:
    """Return both sides of ``A..B``; ``Stopped`` where that is not what was written."""
    first, dots, second = moments.partition("..")
    if not dots or ".." in second or not (first or second):
        msg = f"{clean(moments, 60)!r} is not A..B: give two moments, or one as ..B (what B changed) or A.. (until now)"
        raise Stopped(msg)
    return first.strip(), second.strip()


def _sides(store: SessionStore, key: str, log: Log, first: str, second: str) -> tuple[Side, Side]:
    last = entry_named(store, key, log, second) if second else None
    after = _until(store, key, log, last) if last else log
    if not first:
        return Side(f"before {second}", log_of(after.entries[:-1])), Side(f"after {second}", after)
    before = _until(store, key, log, entry_named(store, key, log, first))
    return Side(f"after {first}", before), Side(f"after {second}" if second else "now", after)


def _reduced(log: Log) -> tuple[Side, Side]:
    """Return what a client sent, and what went up in its place."""
    whole = log_of(one for one in log.entries if not isinstance(one.body, Decision | Compaction | Revoke))
    return Side("as its client sent it", whole), Side("as it went up", log)


def _until(store: SessionStore, key: str, log: Log, entry: Entry) -> Log:
    """Return the log up to ``entry``, on whichever branch it lies."""
    at = next((number for number, one in enumerate(log.entries) if one.id == entry.id), None)
    return read_log(store, key, entry.id) if at is None else log_of(log.entries[: at + 1])


def _of_moments(info: SessionInfo, before: Side, after: Side) -> tuple[Comparison, tuple[str, str]]:
    """Return two moments compared, and how large a request was at either: at the first by what the second knows."""
    size, found = measured_in(info, after.log.branch), compare(before.log, after.log)
    first, second = before.log.branch, after.log.branch
    earlier = size.tokens - size.of(found.after - found.before)
    if first.model == second.model:
        earlier = measured_in(info, as_known_later(first, second)).tokens
    found = sized(found, earlier, size.tokens, size)
    is_same = size.is_counted and found.before == found.after
    counts = about(found.before, is_counted=is_same), about(found.after, is_counted=size.is_counted)
    return found, _sizes(found, *counts)


def _of_request(info: SessionInfo, log: Log, entry: Entry, found: Comparison) -> tuple[Comparison, tuple[str, str]]:
    """Return a request compared with what its client sent, and how large it was as either."""
    at = request_of(log, entry)
    told, size = sent(info, log, at, config.configuration()), measured_in(info, requested(log.entries, at))
    found = sized(found, told.tokens, told.shown_tokens, size)
    return found, _sizes(found, as_sent(told), as_shown(told))


# -- in words ----------------------------------------------------------------------------------------------------------


def _say(found: Comparison, info: SessionInfo, heads: tuple[str, str], lines: int) -> None:
    from rich.text import Text

    out = console()
    say_line(out, session_line(info))
    more = found.after - found.before
    say_whole(out, Text(f"--- {clean(heads[0])}", "red"))
    say_whole(out, Text(f"+++ {clean(heads[1])} ({more:+,})", "green"))
    for run in runs(found.changes):
        _say_run(out, run, lines)
    if all(one.kind == "same" for one in found.changes):
        out.print("nothing changed in between")


def _sizes(found: Comparison, before: str, after: str) -> tuple[str, str]:
    messages = many(found.before_messages, "message"), many(found.after_messages, "message")
    return f"{messages[0]}, {before} tokens", f"{messages[1]}, {after} tokens"


def _say_run(out: Any, run: list[Change], lines: int) -> None:
    from rich.text import Text

    one = run[0]
    sign, style = _SIGNS[one.kind], _STYLES[one.kind]
    if len(run) == 1 and one.kind != "same":
        say_whole(out, Text(f"{sign} {_name(one)} {_change(one)}{_because(one)}", style))
        _say_lines(out, "-", one.gone, lines)
        _say_lines(out, "+", one.come, lines)
        return
    told = {"same": "as before", "hidden": "no longer shown", "new": "said", "back": "shown again"}[one.kind]
    span = f"#{one.number} to #{run[-1].number}" if len(run) > 1 else _name(one)
    tokens = about(sum(change.before or change.after for change in run))
    say_whole(out, Text(f"{sign} {span}: {many(len(run), 'message')}, {tokens} tokens, {told}{_because(one)}", style))


def _name(one: Change) -> str:
    return f"#{one.number} {clean(one.entry)[:SHORT]} {one.role}" if one.number >= 0 else "summary"


def _change(one: Change) -> str:
    if one.kind == "changed":
        return f"{about(one.before)} → {about(one.after)} tokens"
    if one.number < 0:
        told = "gone" if one.kind == "hidden" else "in place of what is hidden"
    else:
        told = {"hidden": "no longer shown", "new": "said", "back": "shown again"}[one.kind]
    return f"{about(one.before or one.after)} tokens, {told}"


def _because(one: Change) -> str:
    return f"  {clean(one.rule)} ({clean(one.by)[:SHORT]}): {clean(one.why)}" if one.by else ""


def _say_lines(out: Any, sign: str, text: tuple[str, ...], most: int) -> None:
    from rich.text import Text

    for line in text[:most]:
        say_line(out, Text(f"    {sign} {clean(line)}", style="dim"))
    if len(text) > most > 0:
        out.print(Text(f"    {sign} … {many(len(text) - most, 'more line')}", style="dim"))
