"""``holdfast show``: a session, a message a line, with what was decided about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import click
import msgspec
from msgspec import Struct

from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import Waiting, clean, console, json_option, many, say_json, say_line
from holdfast.cli.places import opened, store_option
from holdfast.cli.reports.describe import LINE, beginnings, in_short, session_line, when
from holdfast.cli.reports.history import SHORT, as_shown, branch_at, named, states, tokens_of
from holdfast.cli.reports.request_size import PLAIN, Measured, about, measured_in
from holdfast.state.branch.branch import Branch
from holdfast.state.entries import (
    Answer,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Failure,
    Frame,
    Label,
    Note,
    Request,
    Revoke,
    Said,
    Usage,
)
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast show 4d56
  holdfast show 4d56 --last 20
  holdfast show 4d56 --all --json
"""
_MARKS = {"compaction": "⟱", "decision": "✂", "note": "!", "failure": "✗", "revoke": "↺"}
_LAW = frozenset({"decision", "compaction"})
_BESIDE = frozenset({"request", "answer", "frame"})
"""Kinds that are shown only with ``--all``."""
MOST = 1_000
"""[H] Lines that are shown to a person, unless another number is asked for."""
FEW = 100
"""[H] Lines whose entries are read more quickly one by one than with all that lies before them."""
_STYLES = {
    "user": "bright_green", "assistant": "blue", "tool": "yellow", "system": "bright_black",
    "compaction": "magenta", "decision": "yellow", "note": "dim", "failure": "red",
}  # fmt: skip
_ID = 12
"""[H] Characters of an id that are shown at most: a message that needs more has its number."""
_FOR_ID, _FOR_TIME = 50, 72
"""[H] Columns from which on there is room for ids, and for times too: else too little of the words is left."""


class Line(Struct, frozen=True, omit_defaults=True):
    """One entry of the log. ``tokens`` are an estimate, those of an answer as reported."""

    id: str
    kind: str
    text: str
    slot: int | None = None
    """Which message it is, counted from the root."""
    role: str = ""
    tokens: int | None = None
    at: int | None = None
    shown: int | None = None
    """Tokens that a request holds for a message that was reduced; 0 for one that is hidden."""


@click.command("show", epilog=EXAMPLES)
@click.argument("session")
@click.option("--last", type=Whole(1), help=f"The last so many lines only. [default: {MOST}, as JSON all]")
@click.option("--all", "everything", is_flag=True, help="Requests, answers and frames too.")
@store_option
@json_option("the entries")
def command(session: str, last: int | None, store: str | None, *, everything: bool, as_json: bool) -> None:
    """Show a session, a message a line, with what was decided about it.

    SESSION is the beginning of an id; that of an entry, as x-holdfast-request tells it, shows what there was up to it.
    Lines are the branch from its root to where it goes on: messages with their number and size in tokens, compactions
    (⟱) and other decisions (✂) where they were made. A message that requests show reduced begins with ✂ and the tokens
    that are left of it, one that they do not show with ⟱; holdfast why tells more. Sizes with ~ are estimates, by what
    the provider counted in the session so far, as holdfast context gives them; others the provider counted.
    """
    most = last or (None if as_json else MOST)
    with opened(store, readonly=True) as there, Waiting("reading", wanted=not as_json):
        info, entry = named(there, session)
        end = entry.id if entry is not None else info.leaf
        branch = branch_at(there, info.key, entry)
        entries, is_all = _newest(there, info, end, most, everything=everything)
        lines = [*lines_of(entries, there.branch(info.key, end) if entry else branch, measured_in(info, branch))]
    if as_json:
        say_json(msgspec.to_builtins([line for line in lines if everything or line.kind not in _BESIDE]))
    else:
        _say(info, [line for line in lines if everything or line.kind not in _BESIDE])
        if not (is_all or last):
            click.echo(f"these are the last {many(MOST, 'line')}; --last shows more, --json all", err=True)


def _newest(
    store: SessionStore, info: SessionInfo, end: str | None, most: int | None, *, everything: bool
) -> tuple[Sequence[Entry], bool]:
    """Return the entries up to ``end``, as far back as ``most`` lines are of, and whether those are all.

    A few are read one by one, from the end on: what lies before them is left alone.
    """
    if most is None or most > FEW:
        entries = store.path(info.key, end) if end is not None else []
        lines = [at for at, one in enumerate(entries) if everything or _kind(one) not in _BESIDE]
        start = lines[-most] if most is not None and most < len(lines) else 0
        return entries[start:], start == 0
    found, count = list[Entry](), 0
    while end is not None and count < most:
        found.append(store.entry(info.key, end))
        count += everything or _kind(found[-1]) not in _BESIDE
        end = found[-1].parent
    return found[::-1], end is None


def _kind(entry: Entry) -> str:
    return str(entry.body.__struct_config__.tag)


def lines_of(entries: Sequence[Entry], branch: Branch, size: Measured = PLAIN) -> Iterator[Line]:
    """Yield a line for each of ``entries``, the last ones of ``branch``, with its tokens by ``size``."""
    how = states(branch)
    slot = len(how) - sum(isinstance(entry.body, Said | BranchSummary) for entry in entries)
    for entry in entries:
        body = entry.body
        kind = _kind(entry)
        if isinstance(body, Said | BranchSummary):
            message, left = body.slot.message, None
            if how[slot] != "whole":
                left = 0 if how[slot] == "hidden" else size.of(tokens_of(as_shown(branch, slot)))
            yield Line(entry.id, kind, in_short(message), slot, message.role, size.of(body.slot.size), entry.at, left)
            slot += 1
        else:
            tokens = body.usage.input or None if isinstance(body, Answer) else None
            yield Line(entry.id, kind, told(body, size), None, "", tokens, entry.at)


def _used(usage: Usage) -> str:
    cached = f", {usage.cache_read:,} of them cached" if usage.cache_read else ""
    told = f"{usage.input:,} tokens in{cached}, {usage.output:,} out"
    return told if usage.total else "its tokens were not told"


def told(
    body: Frame | Decision | Compaction | Request | Answer | Revoke | Label | Failure | Note, by: Measured = PLAIN
) -> str:
    """Return what an entry that is no message says, sizes in it ``by`` what is known."""
    match body:
        case Compaction():
            after = f"{about(body.before)} → {about(body.after)} tokens"
            known = after if body.after else f"from {about(body.before)} tokens" if body.before else ""
            size = f", {known}" if known else ""
            summary = f"a summary of {about(by.of(body.size))} tokens stands" if body.summary else "nothing stands"
            return f"compaction ({clean(body.trigger, 20)}){size}: {summary} for what came before #{body.keep}"
        case Decision():
            return "; ".join(f"{edit.rule} #{edit.span.start}: {clean(edit.why, LINE)}" for edit in body.edits)
        case Answer():
            return f"answer: {_used(body.usage)} {clean(body.stop, 40)}".rstrip()
        case Request():
            return f"request of {many(body.slots, 'message')} to {clean(body.model, 60) or 'an unnamed model'}"
        case Frame():
            return f"system prompt and tools: {about(by.of(body.tokens))} tokens"
        case Revoke():
            return f"{clean(body.id, 40)} no longer counts"
        case Label():
            return f"{clean(body.target, 40)} is called {clean(body.name, 80)!r}"
        case Failure():
            return f"{clean(body.kind, 40)}: {clean(body.reason, LINE)}"
        case Note():
            told = ", ".join(f"{clean(name, 40)} {clean(str(value), 80)}" for name, value in body.data.items())
            return f"{clean(body.reason, LINE)} ({told or f'{len(body.raw):,} bytes'})"


def _say(info: SessionInfo, lines: list[Line]) -> None:
    from rich.text import Text

    out = console()
    told = " · ".join(piece for piece in (info.format, clean(info.model), clean(info.cwd)) if piece)
    say_line(out, session_line(info))
    say_line(out, Text(told, style="dim"))
    ids = _short(lines)
    for line in lines:
        style = _STYLES.get(line.role or line.kind, "")
        tokens = about(line.tokens, is_counted=line.kind == "answer") if line.tokens is not None else ""
        who = (f"{line.role or line.kind:10}", style)
        what = (f" {tokens:>8}  ", (_left(line), "yellow"), clean(line.text))
        say_line(out, Text.assemble((_place(line, ids, out.width), "dim"), who, *what))


def _short(lines: Iterable[Line]) -> dict[str, str]:
    """Return the beginnings of ids that mean the entries, as far as they are short or nothing else names the entry."""
    said = beginnings(line.id for line in lines if line.slot is not None)
    short = {id_: one if len(one) <= _ID else "" for id_, one in said.items()}
    law = beginnings(line.id for line in lines if line.kind in _LAW)
    return {line.id: line.id[:SHORT] for line in lines} | short | law


def _place(line: Line, ids: Mapping[str, str], width: int) -> str:
    """Return which entry a line is: its number, and where ``width`` has room its id and when it was made."""
    number = f"#{line.slot}" if line.slot is not None else _MARKS.get(line.kind, "·")
    wide = max(SHORT, min(_ID, max(map(len, ids.values()))))
    id_ = f"{clean(ids[line.id]):{wide}} " if width >= _FOR_ID else ""
    return f"{number:>6} {id_}{f'{when(line.at):14} ' if width >= _FOR_TIME else ''}"


def _left(line: Line) -> str:
    """Return the mark of a message that requests show otherwise than it was said."""
    if line.shown is None:
        return ""
    return f"✂ {about(line.shown)} left: " if line.shown else "⟱ "
