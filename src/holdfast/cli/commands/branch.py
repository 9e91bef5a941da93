"""``holdfast branch``: the branches of a session, and where it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import (
    MIN_WRAP_WIDTH,
    ProgressBar,
    clean_single_line,
    format_count,
    make_console,
    make_json_option,
    print_json,
    print_line,
    print_wrapped,
)
from holdfast.cli.reports.branches import build_states_at_entries
from holdfast.cli.reports.describe import format_session_line, format_time, shorten_entry_ids, summarize_message
from holdfast.cli.reports.history import SHORT_ID, find_continuation_leaf, find_entry, load_branch_history
from holdfast.cli.reports.request_size import RequestSize, TargetCache, format_tokens, measure_request
from holdfast.state.entries import AnswerEntry, BranchSummaryEntry, Entry, MessageEntry, NoteEntry
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast branch 4d56
  holdfast branch 4d56 120 --name "before the refactoring"
  holdfast branch 4d56 "before the refactoring"
"""


class BranchSummary(Struct, frozen=True):
    """One branch of a session, told by its last entry."""

    leaf: str
    short: str
    """What names it: a beginning of the id of its last entry, or of the answer that this tells the cost of."""
    is_active: bool
    """Whether the session goes on here."""
    messages: int
    own_messages: int
    """How many of its messages lie on no branch listed before it."""
    tokens: int
    """What a request would take there, as ``holdfast context`` says it of that place."""
    at: int | None
    text: str
    """Its last message, in short."""


class LabelledEntry(Struct, frozen=True):
    """An entry that has a name, and the message it is or comes after, on whichever branch that lies."""

    entry: str
    name: str
    message: int


class SessionBranches(Struct, frozen=True):
    """The branches of a session, and its named entries."""

    session: str
    branches: tuple[BranchSummary, ...]
    named_entries: tuple[LabelledEntry, ...]


@click.command("branch", epilog=EXAMPLES)
@click.argument("session")
@click.argument("entry", required=False)
@click.option("--name", metavar="LABEL", help="Name the place; any command takes the name. '' takes a name away.")
@store_option
@make_json_option("the branches")
def command(session: str, entry: str | None, name: str | None, store: str | None, *, as_json: bool) -> None:
    """List the branches of a session, or go on from another entry.

    SESSION is the beginning of an id; ENTRY is a message's number as holdfast show prints it, a label, or the
    beginning of an entry's id. The session goes on behind that entry: what came after it stays in the log, on a branch
    of its own, and its decisions do not count here.
    """
    if entry is None and name is not None:
        raise CommandError("--name needs an ENTRY to name; holdfast show lists them")
    if name and not name.strip():
        raise CommandError("--name of blanks could not be seen; give a name with letters, or '' to take one away")
    if name is not None and name.removeprefix("#").isdecimal():
        raise CommandError(
            f"--name {clean_single_line(name, 40)} would mean the message of that number; give a name that is no number"
        )
    with open_named_store(store, readonly=entry is None) as there, ProgressBar("branches", is_wanted=not as_json):
        info = there.get_session(session)
        if entry is not None:
            info = _move_leaf(there, info, entry, name)
        session_branches = list_branches(there, info)
    if as_json:
        print_json(msgspec.to_builtins(session_branches))
    else:
        _print_branches(info, session_branches)


def _move_leaf(store: SessionStore, info: SessionInfo, entry: str, name: str | None) -> SessionInfo:
    """Make the session go on behind ``entry``, which is then called ``name``."""
    with store.hold_lease(info.key):
        place = find_entry(store, info.key, load_branch_history(store, info.key), entry)
        store.set_leaf(info.key, find_continuation_leaf(store, info.key, place).id)
        if name is not None:
            store.label_entry(info.key, place.id, name)
    return store.get_session(info.key)


def list_branches(store: SessionStore, info: SessionInfo) -> SessionBranches:
    """Return the branches of a session, and its named entries."""
    leaves, labels = [entry.id for entry in store.read_tips(info.key)], store.read_labels(info.key)
    tree = _EntryTree(
        store.read_entries(info.key)
    )  # last: what is talked on meanwhile lies behind all that is looked for
    return SessionBranches(info.key, tuple(tree.list_branch_lines(info, leaves)), tuple(tree.iterate_labelled(labels)))


class _EntryTree:
    """All entries of a session, each looked at once."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._by_id = {entry.id: entry for entry in entries}
        self._short = shorten_entry_ids(self._by_id)
        self._said: dict[str | None, tuple[int, Entry | None]] = {None: (0, None)}
        """How many messages there are up to an entry, and the newest of them."""
        for entry in entries:
            count, newest = self._said.get(entry.parent, (0, None))
            is_said = isinstance(entry.body, MessageEntry | BranchSummaryEntry)
            self._said[entry.id] = (count + is_said, entry if isinstance(entry.body, MessageEntry) else newest)

    def list_branch_lines(self, info: SessionInfo, leaves: list[str]) -> list[BranchSummary]:
        """Return the branches to ``leaves``, and to the place where the session goes on if that is inside of one."""
        if info.leaf_id is not None and info.leaf_id not in leaves:
            leaves = [*leaves, info.leaf_id]
        leaves = self._filter_leaves(leaves, info.leaf_id)
        states_by_leaf, places = (
            build_states_at_entries(self._entries, leaves),
            TargetCache(config.load_configuration()),
        )
        seen_ids: set[str] = set()
        return [
            self._describe_branch(
                info, leaf, measure_request(states_by_leaf[leaf], *places(info, states_by_leaf[leaf])), seen_ids
            )
            for leaf in leaves
        ]

    def _filter_leaves(self, leaves: list[str], goes_on: str | None) -> list[str]:
        """Return those of ``leaves`` that are branches: a note of a torn line, behind what goes on elsewhere, is none.

        The place where the session goes on is one in any case.
        """
        ends = {leaf: leaf if leaf == goes_on else self._skip_notes(leaf) for leaf in leaves}
        inner: set[str | None] = set()
        for end in ends.values():
            at = self._by_id[end].parent
            while at in self._by_id and at not in inner:
                inner.add(at)
                at = self._by_id[at].parent
        return [leaf for leaf, end in ends.items() if leaf in {goes_on, end} or end not in {*inner, goes_on}]

    def _skip_notes(self, leaf: str) -> str:
        """Return the last entry up to ``leaf`` that is no note; ``leaf`` where there is none."""
        at: str | None = leaf
        while at in self._by_id and isinstance(self._by_id[at].body, NoteEntry):
            at = self._by_id[at].parent
        return leaf if at is None else at

    def iterate_labelled(self, labels: Mapping[str, str]) -> Iterator[LabelledEntry]:
        """Yield the entries that ``labels`` name."""
        for entry, name in labels.items():
            yield LabelledEntry(entry, name, self._said[entry][0] - 1)

    def _describe_branch(self, info: SessionInfo, leaf: str, size: RequestSize, seen_ids: set[str]) -> BranchSummary:
        """Return the branch to ``leaf``; its entries are ``seen_ids`` from then on."""
        last, (count, newest), apart, at = self._by_id[leaf], self._said[leaf], 0, leaf
        while at in self._by_id and at not in seen_ids:
            seen_ids.add(at)
            apart += isinstance(self._by_id[at].body, MessageEntry | BranchSummaryEntry)
            at = self._by_id[at].parent or ""
        text = (
            summarize_message(newest.body.sized_message.message)
            if newest and isinstance(newest.body, MessageEntry)
            else ""
        )
        shown_id = last.parent if isinstance(last.body, AnswerEntry) and last.parent else last.id
        return BranchSummary(
            last.id, self._short[shown_id], last.id == info.leaf_id, count, apart, size.tokens, last.time_ms, text
        )


def _print_branches(info: SessionInfo, branches: SessionBranches) -> None:
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    if not branches.branches:
        out.print("nothing was said in it yet")
    for branch in branches.branches:
        mark = ("* ", "green") if branch.is_active else ("  ", "")
        counts = (
            f"{format_count(branch.messages, 'message')}, {branch.own_messages:,} of its own, "
            f"{format_tokens(branch.tokens)} tokens"
        )
        line = Text.assemble(mark, (f"{clean_single_line(branch.short)} {format_time(branch.at):14} ", "dim"), counts)
        if line.cell_len < out.width - MIN_WRAP_WIDTH:
            print_line(out, line.append(f": {clean_single_line(branch.text)}"))
        else:
            print_wrapped(out, line)
    for named_entry in branches.named_entries:
        where = f"#{named_entry.message}" if named_entry.message >= 0 else "the beginning"
        print_line(
            out,
            Text.assemble(
                (f"  {clean_single_line(named_entry.entry)[:SHORT_ID]} ", "dim"),
                f"{clean_single_line(named_entry.name)}: {where}",
            ),
        )
