"""``holdfast why``: what happened to a message, who decided it, and how to get it back."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from shlex import quote
from typing import Any

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import (
    Waiting,
    clean,
    console,
    json_option,
    many,
    say_command,
    say_json,
    say_line,
    say_more,
    say_whole,
)
from holdfast.cli.places import opened, store_option
from holdfast.cli.reports.describe import session_line, shortest, when, words
from holdfast.cli.reports.history import (
    SHORT,
    Act,
    Log,
    State,
    acts,
    as_shown,
    entry_named,
    named,
    read_log,
    states,
    through,
)
from holdfast.cli.reports.history import tokens_of as size_of
from holdfast.cli.reports.original_text import as_it_came, size_as_it_came
from holdfast.cli.reports.request_detail import OF_REQUESTS, request_of, say, sent
from holdfast.cli.reports.request_size import Measured, about, measured_in
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.branch import Branch
from holdfast.state.entries import BranchSummary, Compaction, Entry, Said
from holdfast.store.base import SessionInfo

EXAMPLES = """\
\b
Examples:
  holdfast why 4d56 128
  holdfast why 4d56 8ab9d04e --lines 20
  holdfast why 4d56 128 --said > result.txt
  holdfast why 9c41d7e2             # a request, by the id in x-holdfast-request
"""
MOST = 20
"""[H] Decisions about a message that a person is told, the first and the last, unless another number is asked for."""
_TOLD = {
    "whole": "it is sent as it was said",
    "reduced": "something shorter stands in its place",
    "hidden": "no request shows it any more",
}


class Stands(Struct, frozen=True, omit_defaults=True):
    """What a request holds in place of a message: itself, changed, or the summary of the compaction ``entry``."""

    tokens: int
    text: str
    entry: str = ""


class Why(Struct, frozen=True):
    """What happened to a message. Tokens are estimates, as ``holdfast context`` gives them."""

    session: str
    message: int
    entry: str
    role: str
    at: int | None
    tokens: int
    """Of what its entry holds, as ``text``."""
    characters: int
    """As it came, also where that was more than an entry may hold."""
    text: str
    state: State
    stands: Stands | None
    """What a request shows for it; nothing where nothing stands for it."""
    acts: tuple[Act, ...]


@click.command("why", epilog=EXAMPLES)
@click.argument("session")
@click.argument("message", required=False)
@click.option("--lines", type=Whole(0), default=5, show_default=True, help="How many lines of each text.")
@click.option("-n", "--limit", type=Whole(1), default=MOST, show_default=True, help="How many decisions about it.")
@click.option("--said", is_flag=True, help="Print the message as it was said, whole, and nothing else.")
@store_option
@json_option("what happened")
def command(session: str, message: str | None, store: str | None, *, said: bool, as_json: bool, **given: int) -> None:
    """Tell what happened to a message: as it was said, as requests show it now, and each decision about it.

    SESSION is the beginning of an id; MESSAGE is a number as holdfast show prints it, a label, or the beginning of an
    entry's id, which is enough by itself. Each decision comes with its rule, its reason, what it saves, how to read the
    text back, and how to undo it. Repairs that only make a request valid are made anew each time and are not listed.
    Sizes with ~ are estimates, by what the provider counted in the session so far; others the provider counted.

    Of a request, by the id that the header x-holdfast-request of its answer tells: as its client sent it, as it went
    up, what was decided for it and before it, and what it cost.
    """
    with opened(store, readonly=True) as there:
        with Waiting("reading", wanted=not as_json):
            info, entry = named(there, session)
            log = read_log(there, info.key)
            keys = [one.key for one in there.sessions()]
            if message is not None:
                entry = entry_named(there, info.key, log, message)
            if entry is None:
                raise Stopped("say which message of the session: a number as holdfast show prints it, or an entry's id")
            log = through(there, info.key, log, entry)
        if isinstance(entry.body, OF_REQUESTS) and not said:
            _say_sent(info, log, entry, shortest(keys)[info.key], as_json=as_json)
            return
        number = _number(log, entry)
        if said:
            _say_said(info, number, entry, as_it_came(there, log, number), as_json=as_json)
            return
        with Waiting("reading", wanted=not as_json):
            found = why(info, log, number, size_as_it_came(there, log, number), measured_in(info, log.branch))
    if as_json:
        say_json(msgspec.to_builtins(found))
    else:
        _say(found, info, shortest(keys)[info.key], **given)


def _say_said(info: SessionInfo, number: int, entry: Entry, pieces: Iterable[str], *, as_json: bool) -> None:
    """Print the words of a message as they are; a terminal gets the line end that they may lack."""
    if as_json:
        say_json({"session": info.key, "message": number, "entry": entry.id, "text": "".join(pieces)})
        return
    for piece in pieces:
        click.echo(piece.encode("utf-8", "replace"), nl=False)
    if sys.stdout is not None and sys.stdout.isatty():
        click.echo()


def _say_sent(info: SessionInfo, log: Log, entry: Entry, short: str, *, as_json: bool) -> None:
    """Tell of the request that ``entry`` is, or that it tells the end of."""
    with Waiting("reading", wanted=not as_json):
        found = sent(info, log, request_of(log, entry), config.configuration())
    if as_json:
        say_json(msgspec.to_builtins(found))
        return
    out = console()
    say_line(out, session_line(info))
    say(out, found, quote(clean(short)))


def _number(log: Log, entry: Entry) -> int:
    """Return which message ``entry`` is; ``Stopped`` where it is none."""
    if not isinstance(entry.body, Said | BranchSummary):
        kind, short = entry.body.__struct_config__.tag, clean(entry.id[:SHORT])
        more = f"; holdfast diff SESSION {short} shows what it changed" if kind in {"decision", "compaction"} else ""
        raise Stopped(f"entry {short} is a {kind} and no message: give a number as holdfast show prints it{more}")
    return next(number for number, one in enumerate(log.said) if one.id == entry.id)


def why(info: SessionInfo, log: Log, number: int, characters: int, size: Measured) -> Why:
    """Return what happened to message ``number``, which had so many characters as it came; tokens are by ``size``."""
    entry, slot = log.said[number], log.branch.slots[number]
    state = states(log.branch)[number]
    return Why(
        session=info.key,
        message=number,
        entry=entry.id,
        role=slot.message.role,
        at=entry.at,
        tokens=size.of(slot.size),
        characters=characters,
        text=_text([slot]),
        state=state,
        stands=_stands(log, number, state, size),
        acts=tuple(acts(log, number, info.format, size)),
    )


def _stands(log: Log, number: int, state: State, size: Measured) -> Stands | None:
    if state != "hidden":
        slots = as_shown(log.branch, number)
        return Stands(size.of(size_of(slots)), _text(slots))
    covered = _covering(log.branch, number)
    if covered is not None:
        slots = as_shown(log.branch, covered)
        return Stands(size.of(size_of(slots)), _text(slots)) if slots else None
    summaries = [(id_, body) for id_, body in log.branch.law if isinstance(body, Compaction)]
    if not summaries or summaries[-1][1].summary is None:
        return None
    id_, body = summaries[-1]
    return Stands(size.of(body.size), _text([Slot(body.summary)]) if body.summary else "", id_)


def _covering(branch: Branch, number: int) -> int | None:
    """Return the kept message whose edit stands for ``number`` too, if one does."""
    edits = (edit for edits in branch.edits.values() for edit in edits if edit.span.part is None)
    return next((e.span.start for e in edits if branch.keep <= e.span.start <= number < max(e.span.stop, 1)), None)


def _text(slots: list[Slot] | tuple[Slot, ...]) -> str:
    return "\n".join(words(slots))


# -- in words ----------------------------------------------------------------------------------------------------------


def _say(found: Why, info: SessionInfo, short: str, lines: int, limit: int) -> None:
    from rich.text import Text

    out = console()
    say_line(out, session_line(info))
    head = f"#{found.message} {clean(found.entry)[:SHORT]} {when(found.at)} {found.role}"
    out.print(Text.assemble((" ".join(head.split()), "bold"), f": {_TOLD[found.state]}"))
    size = f"{about(found.tokens)} tokens, {len(found.text):,} characters"
    cut = f"{found.characters:,} characters; its entry holds {size}" if found.characters != len(found.text) else size
    _say_text(out, f"as it was said: {cut}", found.text, lines)
    if found.stands is not None and found.state != "whole":
        what = "in its place" if found.state == "reduced" else "what stands for it"
        if found.stands.entry:
            what = f"the summary that stands for it (compaction {clean(found.stands.entry)[:SHORT]})"
        _say_text(out, f"{what}: {about(found.stands.tokens)} tokens", found.stands.text, lines)
    if not found.acts:
        out.print("nothing was decided about it")
    left = len(found.acts) - limit
    for act in found.acts if left <= 0 else (*found.acts[: limit // 2], *found.acts[limit // 2 + left :]):
        out.print()
        _say_act(out, short, act)
    say_more(left, "decision", "--limit")


def _say_text(out: Any, head: str, text: str, lines: int) -> None:
    from rich.text import Text

    out.print(Text(head))
    every = text.split("\n")
    for line in every[:lines]:
        say_line(out, Text(f"  | {clean(line)}", style="dim"))
    if len(every) > lines > 0:
        out.print(Text(f"  | … {many(len(every) - lines, 'more line')}", style="dim"))


def _say_act(out: Any, session: str, act: Act) -> None:
    from rich.text import Text

    short, key = clean(act.entry)[:SHORT], quote(clean(session))
    state = f"taken back by {clean(act.revoked)[:SHORT]}" if act.revoked else "in force"
    by = f", by {clean(act.by)}" if act.by else ""
    style = "dim" if act.revoked else "yellow"
    out.print(Text.assemble((clean(act.rule), style), f"  {act.kind} {short} {when(act.at)}{by}: {state}"))
    say_whole(
        out, Text(f"  {clean(act.why)}{f'; it frees {about(act.saves)} tokens of this message' if act.saves else ''}")
    )
    for handle in act.recall:
        say_command(out, Text(f"  read it back: holdfast recall {key} {handle}", style="dim"))
    if not act.revoked and act.kind != "capped":
        say_command(out, Text(f"  undo it: holdfast undo {key} {short}", style="dim"))
