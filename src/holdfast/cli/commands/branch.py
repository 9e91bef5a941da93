"""``holdfast branch``: the branches of a session, and where it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.terminal import (
    LEAST,
    Waiting,
    clean,
    console,
    json_option,
    many,
    say_json,
    say_line,
    say_whole,
)
from holdfast.cli.places import opened, store_option
from holdfast.cli.reports.branches import branches_at
from holdfast.cli.reports.describe import beginnings, in_short, session_line, when
from holdfast.cli.reports.history import SHORT, end_of, entry_named, read_log
from holdfast.cli.reports.request_size import Measured, Places, about, measured
from holdfast.state.entries import Answer, BranchSummary, Entry, Note, Said
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast branch 4d56
  holdfast branch 4d56 120 --name "before the refactoring"
  holdfast branch 4d56 "before the refactoring"
"""


class Twig(Struct, frozen=True):
    """One branch of a session, told by its last entry."""

    leaf: str
    short: str
    """What names it: a beginning of the id of its last entry, or of the answer that this tells the cost of."""
    active: bool
    """Whether the session goes on here."""
    messages: int
    apart: int
    """How many of its messages lie on no branch listed before it."""
    tokens: int
    """What a request would take there, as ``holdfast context`` says it of that place."""
    at: int | None
    text: str
    """Its last message, in short."""


class Named(Struct, frozen=True):
    """An entry that has a name, and the message it is or comes after, on whichever branch that lies."""

    entry: str
    name: str
    message: int


class Branches(Struct, frozen=True):
    """The branches of a session, and its named entries."""

    session: str
    branches: tuple[Twig, ...]
    named: tuple[Named, ...]


@click.command("branch", epilog=EXAMPLES)
@click.argument("session")
@click.argument("entry", required=False)
@click.option("--name", metavar="LABEL", help="Name the place; any command takes the name. '' takes a name away.")
@store_option
@json_option("the branches")
def command(session: str, entry: str | None, name: str | None, store: str | None, *, as_json: bool) -> None:
    """List the branches of a session, or go on from another entry.

    SESSION is the beginning of an id; ENTRY is a message's number as holdfast show prints it, a label, or the
    beginning of an entry's id. The session goes on behind that entry: what came after it stays in the log, on a branch
    of its own, and its decisions do not count here.
    """
    if entry is None and name is not None:
        raise Stopped("--name needs an ENTRY to name; holdfast show lists them")
    if name and not name.strip():
        raise Stopped("--name of blanks could not be seen; give a name with letters, or '' to take one away")
    if name is not None and name.removeprefix("#").isdecimal():
        raise Stopped(f"--name {clean(name, 40)} would mean the message of that number; give a name that is no number")
    with opened(store, readonly=entry is None) as there, Waiting("branches", wanted=not as_json):
        info = there.session(session)
        if entry is not None:
            info = _move(there, info, entry, name)
        found = branches(there, info)
    if as_json:
        say_json(msgspec.to_builtins(found))
    else:
        _say(info, found)


def _move(store: SessionStore, info: SessionInfo, entry: str, name: str | None) -> SessionInfo:
    """Make the session go on behind ``entry``, which is then called ``name``."""
    with store.writing(info.key):
        place = entry_named(store, info.key, read_log(store, info.key), entry)
        store.set_leaf(info.key, end_of(store, info.key, place).id)
        if name is not None:
            store.label(info.key, place.id, name)
    return store.session(info.key)


def branches(store: SessionStore, info: SessionInfo) -> Branches:
    """Return the branches of a session, and its named entries."""
    leaves, labels = [entry.id for entry in store.leaves(info.key)], store.labels(info.key)
    tree = _Tree(store.entries(info.key))  # last: what is talked on meanwhile lies behind all that is looked for
    return Branches(info.key, tuple(tree.twigs(info, leaves)), tuple(tree.places(labels)))


class _Tree:
    """All entries of a session, each looked at once."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._by_id = {entry.id: entry for entry in entries}
        self._short = beginnings(self._by_id)
        self._said: dict[str | None, tuple[int, Entry | None]] = {None: (0, None)}
        """How many messages there are up to an entry, and the newest of them."""
        for entry in entries:
            count, newest = self._said.get(entry.parent, (0, None))
            is_said = isinstance(entry.body, Said | BranchSummary)
            self._said[entry.id] = (count + is_said, entry if isinstance(entry.body, Said) else newest)

    def twigs(self, info: SessionInfo, leaves: list[str]) -> list[Twig]:
        """Return the branches to ``leaves``, and to the place where the session goes on if that is inside of one."""
        if info.leaf is not None and info.leaf not in leaves:
            leaves = [*leaves, info.leaf]
        leaves = self._said_in(leaves, info.leaf)
        grown, places = branches_at(self._entries, leaves), Places(config.configuration())
        seen: set[str] = set()
        return [self._twig(info, leaf, measured(grown[leaf], *places(info, grown[leaf])), seen) for leaf in leaves]

    def _said_in(self, leaves: list[str], goes_on: str | None) -> list[str]:
        """Return those of ``leaves`` that are branches: a note of a torn line, behind what goes on elsewhere, is none.

        The place where the session goes on is one in any case.
        """
        ends = {leaf: leaf if leaf == goes_on else self._unnoted(leaf) for leaf in leaves}
        inner: set[str | None] = set()
        for end in ends.values():
            at = self._by_id[end].parent
            while at in self._by_id and at not in inner:
                inner.add(at)
                at = self._by_id[at].parent
        return [leaf for leaf, end in ends.items() if leaf in {goes_on, end} or end not in {*inner, goes_on}]

    def _unnoted(self, leaf: str) -> str:
        """Return the last entry up to ``leaf`` that is no note; ``leaf`` where there is none."""
        at: str | None = leaf
        while at in self._by_id and isinstance(self._by_id[at].body, Note):
            at = self._by_id[at].parent
        return leaf if at is None else at

    def places(self, labels: Mapping[str, str]) -> Iterator[Named]:
        """Yield the entries that ``labels`` name."""
        for entry, name in labels.items():
            yield Named(entry, name, self._said[entry][0] - 1)

    def _twig(self, info: SessionInfo, leaf: str, size: Measured, seen: set[str]) -> Twig:
        """Return the branch to ``leaf``; its entries are ``seen`` from then on."""
        last, (count, newest), apart, at = self._by_id[leaf], self._said[leaf], 0, leaf
        while at in self._by_id and at not in seen:
            seen.add(at)
            apart += isinstance(self._by_id[at].body, Said | BranchSummary)
            at = self._by_id[at].parent or ""
        text = in_short(newest.body.slot.message) if newest and isinstance(newest.body, Said) else ""
        named = last.parent if isinstance(last.body, Answer) and last.parent else last.id
        return Twig(last.id, self._short[named], last.id == info.leaf, count, apart, size.tokens, last.at, text)


def _say(info: SessionInfo, found: Branches) -> None:
    from rich.text import Text

    out = console()
    say_line(out, session_line(info))
    if not found.branches:
        out.print("nothing was said in it yet")
    for one in found.branches:
        mark = ("* ", "green") if one.active else ("  ", "")
        told = f"{many(one.messages, 'message')}, {one.apart:,} of its own, {about(one.tokens)} tokens"
        line = Text.assemble(mark, (f"{clean(one.short)} {when(one.at):14} ", "dim"), told)
        if line.cell_len < out.width - LEAST:
            say_line(out, line.append(f": {clean(one.text)}"))
        else:
            say_whole(out, line)
    for named in found.named:
        where = f"#{named.message}" if named.message >= 0 else "the beginning"
        say_line(out, Text.assemble((f"  {clean(named.entry)[:SHORT]} ", "dim"), f"{clean(named.name)}: {where}"))
