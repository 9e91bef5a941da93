"""``holdfast branch``: list the branches of a session, and choose the one it continues on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click
import msgspec
from msgspec import Struct

from holdfast import config
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.session_line import format_session_line
from holdfast.cli.output.terminal import (
    MIN_WRAP_WIDTH,
    ProgressBar,
    make_console,
    make_json_option,
    print_json,
    print_line,
    print_wrapped,
)
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import format_time, shorten_entry_ids, summarize_message
from holdfast.reports.requests.request_size import RequestSize, TargetCache, format_tokens, measure_request
from holdfast.reports.sessions.branches import build_states_at_entries
from holdfast.reports.sessions.history import SHORT_ID, find_continuation_leaf, find_entry, load_branch_history
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
    """One branch of a session, identified by its last entry."""

    leaf: str
    short: str
    """The beginning of an id that names it: of its last entry, or of the answer whose usage that entry holds."""
    is_active: bool
    """Whether the session continues on this branch."""
    messages: int
    own_messages: int
    """How many of its messages are on no branch listed before it."""
    tokens: int
    """The size of a request made there, as ``holdfast context`` shows it."""
    at: int | None
    text: str
    """Its last message on one line."""


class LabelledEntry(Struct, frozen=True):
    """A named entry, and the message it is or follows, on whichever branch."""

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
@click.option("--name", metavar="LABEL", help="Give the entry this name; all commands accept it. '' removes the name.")
@store_option
@make_json_option("the branches")
def branch_command(session: str, entry: str | None, name: str | None, store: str | None, *, as_json: bool) -> None:
    """List the branches of a session, or go on from another entry.

    SESSION is the beginning of an id; ENTRY is a message number as holdfast show prints it, a label, or the beginning
    of an entry's id. With ENTRY the session continues after that entry: later entries stay in the log on a branch of
    their own, and their decisions no longer apply.
    """
    if entry is None and name is not None:
        raise CommandError("--name needs an ENTRY to name; holdfast show lists them")
    if name and not name.strip():
        raise CommandError("--name cannot be only blanks; give a name with letters, or '' to remove one")
    # A label is used in place of a message number, so it must not look like one.
    if name is not None and name.removeprefix("#").isdecimal():
        raise CommandError(
            f"--name {clean_single_line(name, 40)} is also a message number; give a name that is not a number"
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
    """Make the session continue after ``entry``, and label that entry ``name`` unless it is None."""
    # Nobody may append between the choice of the leaf and the move to it.
    with store.hold_lease(info.key):
        place = find_entry(store, info.key, load_branch_history(store, info.key), entry)
        store.set_leaf(info.key, find_continuation_leaf(store, info.key, place).id)
        if name is not None:
            store.label_entry(info.key, place.id, name)
    return store.get_session(info.key)


def list_branches(store: SessionStore, info: SessionInfo) -> SessionBranches:
    """Return the branches of a session, and its named entries."""
    leaves = [entry.id for entry in store.read_tips(info.key)]
    labels = store.read_labels(info.key)
    # Entries are read last: others may append meanwhile, and every leaf and label must be among the entries.
    tree = _EntryTree(store.read_entries(info.key))
    return SessionBranches(
        session=info.key,
        branches=tuple(tree.list_branch_lines(info, leaves)),
        named_entries=tuple(tree.iterate_labelled(labels)),
    )


class _EntryTree:
    """All entries of a session, each visited once."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._by_id = {entry.id: entry for entry in entries}
        self._short = shorten_entry_ids(self._by_id)
        self._said: dict[str | None, tuple[int, Entry | None]] = {None: (0, None)}
        """How many messages there are up to an entry, and the newest of them."""
        for entry in entries:
            count, newest = self._said.get(entry.parent, (0, None))
            if isinstance(entry.body, MessageEntry | BranchSummaryEntry):
                count += 1
            # A branch summary has a message number, but it is not a message that anybody wrote.
            if isinstance(entry.body, MessageEntry):
                newest = entry
            self._said[entry.id] = (count, newest)

    def list_branch_lines(self, info: SessionInfo, leaves: list[str]) -> list[BranchSummary]:
        """Describe the branches to ``leaves``, and to the place where the session continues if that is inside one."""
        if info.leaf_id is not None and info.leaf_id not in leaves:
            leaves = [*leaves, info.leaf_id]
        leaves = self._filter_leaves(leaves, info.leaf_id)
        states_by_leaf = build_states_at_entries(self._entries, leaves)
        places = TargetCache(config.load_configuration())
        seen_ids: set[str] = set()
        branches = []
        for leaf in leaves:
            state = states_by_leaf[leaf]
            target, settings = places(info, state)
            size = measure_request(state, target, settings)
            branches.append(self._describe_branch(info, leaf, size, seen_ids))
        return branches

    def _filter_leaves(self, leaves: list[str], active_leaf: str | None) -> list[str]:
        """Keep the leaves that are branches of their own; the active leaf always is.

        A leaf that only adds notes to an entry with other children is dropped: recovery writes such a note for a torn
        line, and nobody branched there.
        """
        ends = {}
        for leaf in leaves:
            ends[leaf] = leaf if leaf == active_leaf else self._skip_notes(leaf)
        inner_ids: set[str | None] = set()
        for end in ends.values():
            at = self._by_id[end].parent
            while at in self._by_id and at not in inner_ids:
                inner_ids.add(at)
                at = self._by_id[at].parent
        branches = []
        for leaf, end in ends.items():
            has_no_notes = leaf in {active_leaf, end}
            if has_no_notes or (end not in inner_ids and end != active_leaf):
                branches.append(leaf)
        return branches

    def _skip_notes(self, leaf: str) -> str:
        """Return the last entry up to ``leaf`` that is not a note, or ``leaf`` if all are."""
        at: str | None = leaf
        while at in self._by_id and isinstance(self._by_id[at].body, NoteEntry):
            at = self._by_id[at].parent
        return leaf if at is None else at

    def iterate_labelled(self, labels: Mapping[str, str]) -> Iterator[LabelledEntry]:
        """Yield the entries that have a label."""
        for entry, name in labels.items():
            yield LabelledEntry(entry, name, self._said[entry][0] - 1)

    def _describe_branch(
        self,
        info: SessionInfo,
        leaf: str,
        size: RequestSize,
        seen_ids: set[str],
    ) -> BranchSummary:
        """Describe the branch to ``leaf``, and add its entries to ``seen_ids``."""
        last = self._by_id[leaf]
        message_count, newest = self._said[leaf]
        own_count = 0
        at: str | None = leaf
        while at in self._by_id and at not in seen_ids:
            seen_ids.add(at)
            own_count += isinstance(self._by_id[at].body, MessageEntry | BranchSummaryEntry)
            at = self._by_id[at].parent
        text = ""
        if newest is not None and isinstance(newest.body, MessageEntry):
            text = summarize_message(newest.body.sized_message.message)
        # Imported usage is an entry of its own after the answer; people know the answer's id.
        if isinstance(last.body, AnswerEntry) and last.parent:
            shown_id = last.parent
        else:
            shown_id = last.id
        return BranchSummary(
            leaf=last.id,
            short=self._short[shown_id],
            is_active=last.id == info.leaf_id,
            messages=message_count,
            own_messages=own_count,
            tokens=size.tokens,
            at=last.time_ms,
            text=text,
        )


def _print_branches(info: SessionInfo, branches: SessionBranches) -> None:
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    if not branches.branches:
        out.print("there are no messages in it yet")
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
