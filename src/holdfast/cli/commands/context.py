"""``holdfast context``: what the next request of a session would hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise
from shlex import quote
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import (
    GAP,
    Waiting,
    clean,
    console,
    json_option,
    many,
    say_command,
    say_json,
    say_line,
    say_table,
    say_whole,
)
from holdfast.cli.places import opened, store_option
from holdfast.cli.reports.describe import beginnings, part_in_short, session_line
from holdfast.cli.reports.history import SHORT, Log, branch_at, named, read_log
from holdfast.cli.reports.next_plan import InForce, Prospect, in_force, in_words, prospect, recorded, world_of
from holdfast.cli.reports.request_size import about, measured, settings_of, target_of
from holdfast.messages.parts import Media, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import count
from holdfast.messages.sized_message import Slot
from holdfast.planning import budget as guard
from holdfast.planning.pipeline import Policy
from holdfast.planning.settings import Settings
from holdfast.replay.tokenizer import part_tokens
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import origins, project
from holdfast.state.entries import Frame
from holdfast.state.target import Target
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast context 4d56
  holdfast context 4d56 --window 200000 --top 20
  holdfast context 4d56 --policy holdfast
  holdfast context 4d56 --policy holdfast --window 96000 --record
"""
REST = "rest"
"""What the provider reported beyond the messages: system prompt and tools, where the record has none."""
_BAR = 40
"""Columns of a bar that stands for the whole window, where there is room for as many."""
_LISTED = 10
"""How many of the newest entries in force are listed for a person."""
_ORDER = ("frame", "system", "summary", "user", "assistant", "thinking", "calls", "results", "stubs", "media", "other")


class Piece(Struct, frozen=True):
    """A part of a message in the request: ``slot`` is the message's number, -1 the summary."""

    slot: int
    kind: str
    tokens: int
    text: str


class Context(Struct, frozen=True):
    """What a request holds; tokens are estimates, but for ``tokens`` where the provider ``counted`` just these."""

    session: str
    model: str
    window: int
    origin: str
    """Where the window came from."""
    usable: int
    tokens: int
    messages: int
    kinds: dict[str, int]
    largest: tuple[Piece, ...]
    in_force: tuple[InForce, ...] = ()
    decided: Prospect | None = None
    """What the policy asked about would decide, or did."""
    counted: bool = False
    """Whether ``tokens`` are the provider's, who counted just this request."""


class Asked(Struct, frozen=True):
    """The command line."""

    session: str
    model: str | None
    window: int | None
    top: int
    policy: str | None
    record: bool
    store: str | None
    as_json: bool


@click.command("context", epilog=EXAMPLES)
@click.argument("session")
@click.option("--model", help="The model it goes to. [default: the recorded one]")
@click.option("--window", type=Whole(1), help="Its window in tokens. [default: the model's]")
@click.option("--top", type=Whole(0), default=10, show_default=True, help="How many large parts to list.")
@click.option("--policy", metavar="NAME", help="Show what this policy would decide before the request.")
@click.option("--record", is_flag=True, help="Decide it: spills, decisions and compaction go into the log.")
@store_option
@json_option("the figures")
def command(**given: Any) -> None:
    """Show what the next request of a session would hold: tokens by kind, and the largest parts.

    SESSION is the beginning of an id; that of an entry, as x-holdfast-request tells it, shows what that request held.
    Recorded compactions and decisions are applied; tokens are our estimate, calibrated by the usage of requests that
    Holdfast sent itself. With --policy, what that policy would decide before the request is listed, as if it were made
    now; with --record as well that is done, as a real request would do it, so that holdfast export --reduced gives that
    session. Nothing is sent, and holdfast undo takes it back.
    """
    asked = Asked(**given)
    if asked.record and asked.policy is None:
        raise Stopped("--record needs --policy NAME: whose decisions are to be recorded?")
    with Waiting("reading", wanted=not asked.as_json):
        found, info = _found(asked)
    if asked.as_json:
        say_json(msgspec.to_builtins(found))
    else:
        _say(found, info)


def _found(asked: Asked) -> tuple[Context, SessionInfo]:
    """Return what the request holds, after what was to be recorded was."""
    known = config.configuration()
    with opened(asked.store, readonly=not asked.record) as there:
        info, entry = named(there, asked.session)
        leaf = entry.id if entry is not None else None
        if leaf is not None and asked.record:
            raise Stopped(f"{asked.session} is an entry, and what is decided goes behind the last: name the session")
        if asked.policy is None:
            branch, told = branch_at(there, info.key, entry), None
            settings = settings_of(branch, known)
            place = target_of(info, branch, asked.model, asked.window, known.catalog)
        else:
            log = read_log(there, info.key, leaf)
            place = target_of(info, log.branch, asked.model, asked.window, known.catalog)
            policy = known.policy(asked.policy).for_session(info.key)
            settings = policy.settings
            told, branch = _prospect(there, info.key, log, place, policy, record=asked.record)
    return context_of(info.key, branch, place, asked.top, settings, told), info


def _prospect(
    store: SessionStore, key: str, log: Log, place: Target, policy: Policy, *, record: bool
) -> tuple[Prospect, Branch]:
    """Return what is decided and the branch as the log holds it; with nothing to decide nothing is recorded."""
    world = world_of(log, place)
    told = prospect(log, place, policy, world)
    return recorded(store, key, log, place, policy, world) if record and told.would else (told, log.branch)


def context_of(
    session: str, branch: Branch, place: Target, top: int, settings: Settings, decided: Prospect | None = None
) -> Context:
    """Return what the request that ``branch`` makes to ``place`` holds, in the window that overflows told of."""
    place, size = guard.in_force(place, branch, settings), measured(branch, place, settings)
    whole, frame = size.tokens, size.frame
    told = branch.anchor is not None and branch.model in {"", place.model}
    pieces = _within(list(_pieces(branch, size.scale)), whole - frame, exact=not told)
    kinds = Counter({REST if branch.frame == Frame() else "frame": frame})  # nobody told it: it was measured
    for piece in pieces:
        kinds[piece.kind] += piece.tokens
    kinds[REST] += max(0, whole - sum(kinds.values())) if told else 0
    room = guard.measure_room(place, settings)
    return Context(
        session=session,
        model=place.model,
        window=room.window,
        origin=place.limits.origin,
        usable=max(0, room.usable),
        tokens=whole,
        messages=len(project(branch)),
        kinds={kind: kinds[kind] for kind in (*_ORDER, REST) if kinds[kind]},
        largest=tuple(sorted(pieces, key=lambda piece: -piece.tokens)[:top]),
        in_force=in_force(branch),
        decided=decided,
        counted=size.is_counted,
    )


def _pieces(branch: Branch, scale: float) -> Iterator[Piece]:
    """Yield the parts of the request with their tokens; a message's tokens are shared out by the size of its parts."""
    names: dict[str, str] = {}
    for slot, origin in zip(project(branch), origins(branch), strict=True):
        names.update((call.id, call.name) for call in slot.message.calls)
        sizes = [part_tokens(part, count) for part in slot.message.parts]
        whole = scale * max(slot.size, sum(sizes)) / (sum(sizes) or 1)
        for part, size in zip(slot.message.parts, sizes, strict=True):
            name = names.get(part.call_id, "") if isinstance(part, ToolResult) else ""
            yield Piece(origin, _kind(slot, origin, part), round(whole * size), part_in_short(part, name))


def _within(pieces: list[Piece], room: int, *, exact: bool) -> list[Piece]:
    """Return ``pieces`` with no more tokens than ``room`` together, and if ``exact`` with just as many."""
    sizes = sum(piece.tokens for piece in pieces)
    if not sizes or sizes == room or (sizes < room and not exact):
        return pieces
    ends = [end * room // sizes for end in accumulate(piece.tokens for piece in pieces)]
    sizes_within = (end - start for start, end in pairwise([0, *ends]))
    return [replace(piece, tokens=size) for piece, size in zip(pieces, sizes_within, strict=True)]


def _kind(slot: Slot, origin: int, part: Part) -> str:
    if origin < 0:
        return "summary"
    if isinstance(part, Text):
        return "results" if slot.message.role == "tool" else slot.message.role
    if isinstance(part, ToolResult):
        return "stubs" if slot.raw is None and slot.base is not None else "results"
    kinds: tuple[tuple[type, str], ...] = ((Thinking, "thinking"), (ToolCall, "calls"), (Media, "media"))
    return next((name for type_, name in kinds if isinstance(part, type_)), "other")


def _say(found: Context, info: SessionInfo) -> None:
    from rich.text import Text

    out = console()
    size, share = about(found.tokens, is_counted=found.counted), found.tokens / found.window
    head = f"{size} of {found.window:,} tokens ({share:.0%})"
    say_line(out, session_line(info))
    where = f"{clean(found.model) or 'no model'}, window: {found.origin}; usable {found.usable:,}"
    say_whole(out, Text.assemble((head, "red" if found.tokens > found.usable else "green"), (f"  {where}", "dim")))
    out.print()
    say_table(out, _table(found, out.width))
    if REST in found.kinds:
        say_whole(out, Text("rest: reported by the provider beyond these messages (system prompt, tools)", "dim"))
    if found.largest:
        out.print()
        out.print(Text("the largest parts", style="dim"))
    for piece in found.largest:
        number = "summary" if piece.slot < 0 else f"#{piece.slot}"
        say_line(out, Text(f"{piece.tokens:>9,}  {number:>7}  {piece.kind:9}  {clean(piece.text)}"))
    _say_decided(out, found)


def _say_decided(out: Any, found: Context) -> None:
    """Print what is in force, and what is decided beside it."""
    from rich.text import Text

    if found.in_force:
        out.print()
        out.print(Text(f"in force: {many(len(found.in_force), 'entry').replace('entrys', 'entries')}", style="dim"))
    short = beginnings(one.id for one in found.in_force)
    for one in found.in_force[-_LISTED:]:
        rules = ", ".join(f"{clean(rule)} {count:,}" for rule, count in one.rules.items())
        say_whole(out, Text(f"  {one.kind:10} {clean(short[one.id])} {rules}".rstrip()))
    if found.decided is not None:
        out.print()
        for line in in_words(found.decided):
            say_whole(out, Text(clean(line) if not line.startswith(" ") else f"  {clean(line)}"))
        if found.decided.recorded:
            ids = " ".join(one[:SHORT] for one in reversed(found.decided.recorded))
            say_command(out, Text(f"to take it back: holdfast undo {quote(clean(found.session))} {ids}", style="dim"))


def _table(found: Context, width: int) -> Any:
    """Return the kinds with their tokens and shares; bars have what is left of ``width``."""
    from rich.table import Table

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=False)
    for name in ("kind", "tokens", "share", "bar"):
        table.add_column(name, justify="right" if name in {"tokens", "share"} else "left", no_wrap=True)
    parts = (*found.kinds.items(), ("free", max(0, found.window - found.tokens)))
    rows = [(kind, f"{tokens:,}", f"{tokens / found.window:.1%}") for kind, tokens in parts]
    longest = max(0, min(_BAR, width - sum(max(map(len, column)) + GAP for column in zip(*rows, strict=True))))
    for row, (_, tokens) in zip(rows, parts, strict=True):
        table.add_row(*row, "█" * min(longest, round(longest * tokens / found.window)))
    return table
