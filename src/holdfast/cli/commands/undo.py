"""``holdfast undo``: a decision no longer counts; what it had replaced is shown again."""

from __future__ import annotations

from collections.abc import Container
from operator import ne

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import Waiting, clean, console, json_option, say_json, say_line, say_more, say_whole
from holdfast.cli.places import opened, store_option
from holdfast.cli.reports.describe import beginnings, session_line, when
from holdfast.cli.reports.history import Log, State, acting, edits_shown, log_of, read_log, states
from holdfast.cli.reports.request_size import about, as_asked, measured
from holdfast.cli.reports.session_lock import at_leaf
from holdfast.planning import budget as guard
from holdfast.planning.settings import Settings
from holdfast.state.branch.branch import Branch, extend
from holdfast.state.branch.view import shown, shown_slots, slot_after
from holdfast.state.edits import Edit
from holdfast.state.entries import Compaction, Decision, Entry, Revoke
from holdfast.state.target import Limits, Target
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast undo 4d56 --list
  holdfast undo 4d56
  holdfast undo 4d56 e77b
  holdfast undo 4d56 e77b 9c8f
  holdfast undo 4d56 --window
"""
MOST = 20
"""[H] Decisions that a list shows, unless another number is asked for."""


class Standing(Struct, frozen=True):
    """A decision or compaction in force, and what would be if it were not. Tokens are estimates."""

    id: str
    kind: str
    rules: tuple[str, ...]
    at: int | None
    messages: int
    """Messages that would be shown again as they were said, or less reduced."""
    tokens: int
    """What the next request would grow by."""


class Law(Struct, frozen=True):
    """What is in force in a session, the newest first."""

    session: str
    in_force: tuple[Standing, ...]


class Undone(Struct, frozen=True, omit_defaults=True):
    """What was revoked, and what that changed."""

    session: str
    revoked: Standing
    before: int
    after: int
    """Tokens of the next request, as ``holdfast context`` says them."""
    also: tuple[Standing, ...] = ()
    """What was revoked behind it, where more than one was named; each as it stood then."""


class Forgotten(Struct, frozen=True):
    """What a session's window was taken for, in tokens, and what it is taken for now."""

    session: str
    before: int
    after: int
    origin: str
    """Where ``after`` came from."""


@click.command("undo", epilog=EXAMPLES)
@click.argument("session")
@click.argument("decisions", metavar="[DECISION...]", nargs=-1)
@click.option("--window", is_flag=True, help="Forget what refusals told of its window: it is as configured again.")
@click.option("--list", "listed", is_flag=True, help="Only list what is in force, the newest first.")
@click.option("-n", "--limit", type=Whole(1), default=MOST, show_default=True, help="How many --list shows.")
@store_option
@json_option("what was revoked, or all that is in force,")
def command(
    session: str,
    decisions: tuple[str, ...],
    limit: int,
    store: str | None,
    *,
    window: bool,
    listed: bool,
    as_json: bool,
) -> None:
    """Take back a decision: what it had reduced is shown again.

    SESSION and DECISION are the beginnings of ids; without DECISION it is the newest decision or compaction in force.
    Of several all are taken back, or none. An entry is appended that revokes it: what was said since stays where it is,
    and the messages it had reduced or hidden are shown again. Undoing once more takes back the one before.

    A request that was refused as too large tells how large the window is, and that stands until another is configured
    or a larger request is taken. Where the provider takes more by now, --window makes that count no more.
    """
    if listed and decisions:
        raise Stopped("--list lists everything in force; leave the decision out")
    if window and (listed or decisions):
        raise Stopped("--window forgets what was learned of the window and nothing else; give it alone")
    with opened(store, readonly=listed) as there:
        info = there.session(session)
        if listed:
            with Waiting("what is in force", wanted=not as_json):
                log = read_log(there, info.key)
                law = Law(info.key, tuple(standing(info, log, None if as_json else limit)))
            _say_list(info, law, len(acting(log.branch)), as_json=as_json)
            return
        with Waiting("undoing", wanted=not as_json):
            found = forget(there, info) if window else undo(there, info, *decisions)
    if as_json:
        say_json(msgspec.to_builtins(found))
    else:
        _say(info, found)


def standing(info: SessionInfo, log: Log, limit: int | None = None) -> list[Standing]:
    """Return what is in force, the newest first, ``limit`` of it at most, each as if it alone were taken back."""
    branch, times = log.branch, _times(log)
    asked = as_asked(info, branch, config.configuration())
    newest = list(reversed(acting(branch)))
    there = set(shown_slots(branch, branch.keep))
    last = _last_told(branch, newest, there)
    return [
        _standing(times, one, asked, branch, _undone(branch, *one, there, fold=one[0] == last))
        for one in newest[:limit]
    ]


def _times(log: Log) -> dict[str, int | None]:
    return {entry.id: entry.at for entry in log.entries}


def _standing(
    times: dict[str, int | None],
    one: tuple[str, Decision | Compaction],
    asked: tuple[Target, Settings],
    branch: Branch,
    without: Branch,
) -> Standing:
    """Return what ``one`` of the law does in ``branch``; tokens are those of requests as they are ``asked``."""
    id_, body = one
    more = measured(without, *asked).tokens - measured(branch, *asked).tokens
    if isinstance(body, Decision):
        rules = tuple(dict.fromkeys(edit.rule for edit in body.edits))
        spans = [edit.span for edit in edits_shown(branch, body)]
        messages = len({at for span in spans for at in range(span.start, span.stop)})
        return Standing(id_, "decision", rules, times[id_], messages, more)
    changed = sum(old != new for old, new in zip(_fates(branch), _fates(without), strict=True))
    return Standing(id_, "compaction", ("compaction",), times[id_], changed, more)


def _revoked(branch: Branch, id_: str) -> Branch:
    return extend(branch, Entry("", None, Revoke(id_)))


def _undone(branch: Branch, id_: str, body: Decision | Compaction, there: Container[int], *, fold: bool) -> Branch:
    """Return ``branch`` without ``body``, of which no more is right than its size if it is not to ``fold`` all anew.

    To fold costs all that is in force. A decision gives back what it saves, and nothing else.
    """
    if fold or isinstance(body, Compaction):
        return _revoked(branch, id_)
    told = branch.measured
    if told is not None and _first_changed(branch, body, there) < told.slots:
        told = replace(told, mark=b"")  # what was counted had the decision
    saved = sum(edit.saves for edit in edits_shown(branch, body))
    return replace(branch, held=branch.held + saved, measured=told)


def _last_told(branch: Branch, newest: list[tuple[str, Decision | Compaction]], there: Container[int]) -> str:
    """Return the one decision without which the request that was counted last may stand again; or nothing.

    Whatever changed that came behind the count, so it is the newest that is about those messages.
    """
    told = branch.measured
    if told is None or branch.anchor is not None:
        return ""
    return next((id_ for id_, body in newest if _first_changed(branch, body, there) < told.slots), "")


def _first_changed(branch: Branch, body: Decision | Compaction, there: Container[int]) -> int:
    """Return the first slot of those ``there`` that is shown otherwise without ``body``; the end where none is."""
    groups: dict[int, list[Edit]] = {}
    for edit in edits_shown(branch, body):
        groups.setdefault(edit.span.start, []).append(edit)
    return min(
        (at for at, edits in groups.items() if at in there and _changes(branch, at, edits)), default=len(branch.slots)
    )


def _changes(branch: Branch, at: int, edits: list[Edit]) -> bool:
    """Return whether slot ``at`` is shown otherwise without ``edits``, which others may stand for as well."""
    others = list(branch.edits[at])
    for edit in edits:
        others.remove(edit)
    without = replace(branch, edits={at: tuple(others)} if others else {})
    digests = ([slot.digest for slot in shown(one, at)] for one in (branch, without))
    return slot_after(branch, at) != slot_after(without, at) or ne(*digests)


def _fates(branch: Branch) -> list[tuple[State, tuple[Edit, ...]]]:
    """Return how each message is shown, and by which edits."""
    return [
        (state, () if state == "hidden" else branch.edits.get(index, ())) for index, state in enumerate(states(branch))
    ]


def undo(store: SessionStore, info: SessionInfo, *decisions: str) -> Undone:
    """Revoke decisions of a session, the newest where none is named, and return what that changed."""
    key = info.key
    with at_leaf(store, key) as journal:
        revoked = journal.revoke(*decisions or (None,))
    path = store.path(key, journal.leaf)
    logs = [log_of(path[: at - len(revoked)]) for at in range(len(revoked))]  # each as it was just before
    asked = as_asked(info, logs[0].branch, config.configuration())
    first, *also = [
        _standing(_times(log), (id_, dict(log.branch.law)[id_]), asked, log.branch, _revoked(log.branch, id_))
        for log, id_ in zip(logs, revoked, strict=True)
    ]
    before, after = (measured(branch, *asked).tokens for branch in (logs[0].branch, journal.branch))
    return Undone(key, first, before, after, tuple(also))


def forget(store: SessionStore, info: SessionInfo) -> Forgotten:
    """Let nothing count any more that overflows told of a session's window, and return what that changed."""
    with at_leaf(store, info.key) as journal:
        before = _limits(info, journal.branch)
        if before.origin != guard.LEARNED:
            raise Stopped(f"no refusal told of a smaller window: it is {before.window:,} tokens ({before.origin})")
        journal.forget()
    after = _limits(info, journal.branch)
    return Forgotten(info.key, before.window, after.window, after.origin)


def _limits(info: SessionInfo, branch: Branch) -> Limits:
    place, settings = as_asked(info, branch, config.configuration())
    return guard.in_force(place, branch, settings).limits


# -- in words ----------------------------------------------------------------------------------------------------------


def _say(info: SessionInfo, found: Undone | Forgotten) -> None:
    from rich.text import Text

    out = console()
    say_line(out, session_line(info))
    if isinstance(found, Forgotten):
        told = f"the window is {found.after:,} tokens again ({found.origin}); it was learned to be {found.before:,}"
        say_whole(out, Text(told, "green"))
        return
    undone = (found.revoked, *found.also)
    ids = beginnings(one.id for one in undone)
    for one in undone:
        say_whole(out, Text(f"{_name(one, ids[one.id])} no longer counts: {_back(one)}", "green"))
    say_whole(out, Text(f"the next request holds {about(found.after)} tokens; it was {about(found.before)}"))


def _name(one: Standing, id_: str) -> str:
    rules = "" if one.rules == (one.kind,) else f" ({', '.join(map(clean, one.rules))})"
    return f"{one.kind} {clean(id_)}{rules}"


def _back(one: Standing) -> str:
    shown = "message is" if one.messages == 1 else "messages are"
    size = f"{about(abs(one.tokens))} tokens {'more' if one.tokens >= 0 else 'fewer'}"
    return f"{size}, {one.messages:,} {shown} shown otherwise"


def _say_list(info: SessionInfo, found: Law, count: int, *, as_json: bool) -> None:
    from rich.text import Text

    if as_json:
        say_json(msgspec.to_builtins(found))
        return
    out = console()
    say_line(out, session_line(info))
    if not found.in_force:
        out.print("nothing is in force that could be undone")
    ids = beginnings(one.id for one in found.in_force)
    for one in found.in_force:
        told = f"without it {_back(one)}: {_name(one, ids[one.id])}"
        say_whole(out, Text.assemble((f"{when(one.at):14} ", "dim"), told))
    say_more(count - len(found.in_force), "older one", "--limit")
