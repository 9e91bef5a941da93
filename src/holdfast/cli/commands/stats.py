"""``holdfast stats``: how large sessions got, what their reductions saved, and what they cost in cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import (
    GAP,
    Waiting,
    clean,
    console,
    fitting,
    json_option,
    many,
    say_json,
    say_line,
    say_more,
    say_table,
    say_whole,
)
from holdfast.cli.places import absence, opened, store_option
from holdfast.cli.reports.account import Account, Rule, Size, account_and_branch, together
from holdfast.cli.reports.describe import session_line, shortest
from holdfast.cli.reports.dry_run import Foreseen, foreseen, in_words
from holdfast.cli.reports.history import SHORT
from holdfast.cli.reports.request_size import Measured, Places, about, measured
from holdfast.config import Catalog
from holdfast.planning import budget as guard
from holdfast.planning.settings import Settings
from holdfast.state.branch.branch import Branch
from holdfast.state.calibration.calibration import smaller
from holdfast.state.entries import Entry, Frame
from holdfast.state.target import Target
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.blobs.blob_names import named_blobs

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
\b
Examples:
  holdfast stats 4d56
  holdfast stats
  holdfast stats 4d56 --json
"""
MOST = 100
"""[H] Sessions that are listed for a person, unless another number is asked for."""
FORESEEN_UNASKED = 5_000
"""[H] Requests of a session that are planned unasked to tell what its policy would have done, a second or two for all.
At five times as many that took longer than all other figures, and of a long session they are what is looked for."""


@click.command("stats", epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option(
    "-n", "--limit", type=Whole(1), help=f"How many, the last changed first; all count. [default: {MOST}, as JSON all]"
)
@click.option(
    "--foresee/--no-foresee",
    "wants_foresight",
    default=None,
    help=f"Whether to plan what the policy of SESSION would have done. [default: up to {FORESEEN_UNASKED:,} requests]",
)
@store_option
@json_option("the figures")
def command(
    session: str | None, limit: int | None, store: str | None, *, wants_foresight: bool | None, as_json: bool
) -> None:
    """Tell how large conversations got, what was saved, and what that cost in cache.

    SESSION is the beginning of an id. Figures are of all its branches; what the next request saves is of the one on
    which the session goes on. The largest request is told as its client sent it and as it went up. Tokens with ~, and
    all that were saved, are estimates, by what the provider counted in the session; others are as it reported them, and
    dollars are of the model's prices. A break is a request that no longer begins as the one before it: what was cached
    behind that place is written anew. Of a session that was only looked at it is told what its policy would have done;
    of a long one only with --foresee, since each of its requests is planned for that.
    """
    if session is None and wants_foresight is not None:
        raise click.UsageError("--foresee and --no-foresee are about one session; give the beginning of its id")
    known = config.configuration()
    with opened(store, readonly=True) as there, Waiting(wanted=not as_json) as waiting:
        infos = [there.session(session)] if session is not None else there.sessions()
        places = Places(known)
        told, is_left_out = None, False
        if session is None:
            found = [account_of(there, info, known.catalog, places) for info in waiting.over("sessions", infos)]
        else:
            waiting.begin("reading the log")
            entries = there.entries(infos[0].key)
            waiting.begin("what was sent and what it cost")
            one, branch = _account_and_branch(there, infos[0], known.catalog, places, entries)
            found = [one]
            if one.requests and not one.rules:  # nothing was decided: it was only looked at
                is_left_out = one.requests > FORESEEN_UNASKED if wants_foresight is None else not wants_foresight
                if not is_left_out:
                    waiting.begin("what its policy would have done", one.requests)
                    policy = branch.policy or "holdfast"
                    told = foreseen(infos[0], entries, known, policy, branch, waiting.tick)
        total = together(found)
    if session is None:
        why = "" if found else absence(store)
        if why:
            click.echo(why, err=True)
        if as_json:
            say_json({"sessions": [*map(_told, found[:limit])], "all": _told(total)})
        elif not why:
            _say_all(found[: limit or MOST], total)
            say_more(len(found[limit or MOST :]), "session", "--limit")
    elif as_json:
        foresight = {"foreseen": msgspec.to_builtins(told)} if told is not None or is_left_out else {}
        say_json(_told(found[0]) | foresight)
    else:
        _say(found[0], infos[0], told, is_left_out=is_left_out)


def account_of(store: SessionStore, info: SessionInfo, catalog: Catalog, places: Places) -> Account:
    """Return what was saved in a session, with the sizes of its spilled texts, in the window that it may use."""
    return _account_and_branch(store, info, catalog, places, store.entries(info.key))[0]


def _account_and_branch(
    store: SessionStore, info: SessionInfo, catalog: Catalog, places: Places, entries: Sequence[Entry]
) -> tuple[Account, Branch]:
    """Return what ``account_of`` does of a session whose ``entries`` were read, and the branch on which it goes on."""
    hashes = named_blobs(entries)
    sizes = [store.blobs.size(hash_) for hash_ in hashes if store.blobs.has(hash_)]

    known: dict[tuple[str, int, Frame, str], tuple[Target, Settings]] = {}  # of this session

    def sized(branch: Branch) -> Measured:
        asked = branch.model, branch.window, branch.frame, branch.policy
        if asked not in known:
            known[asked] = places(info, branch)
        return measured(branch, *known[asked])

    found, branch = account_and_branch(info.key, entries, info.leaf, catalog, info.model, sized)
    avoided = 0 if info.format else found.avoided  # what another tool compacted is its merit
    largest = _in_force(found.largest, branch, places, info) if found.largest.sent else found.largest
    found = replace(found, largest=largest, spills=len(hashes), spill_bytes=sum(sizes), avoided=avoided)
    return found, branch


def _in_force(largest: Size, branch: Branch, places: Places, info: SessionInfo) -> Size:
    """Return the size of the largest request in the window that the next one is planned for."""
    place, settings = places(info, branch)
    limits = guard.in_force(place, branch, settings).limits
    capped = replace(largest, window=smaller(largest.window, settings.window_cap))
    return capped.limited(limits.window) if limits.origin == guard.LEARNED else capped


_PAID = ("input", "output", "cache_read", "cache_write", "dollars", "cache_hit")
"""Figures that answers tell."""
_PRICED = ("dollars", "saved_dollars", "rewritten_dollars")
"""Figures that prices are needed for."""


def _told(found: Account) -> dict[str, Any]:
    """Return the figures for JSON; what no answer told is nothing."""
    told: dict[str, Any] = msgspec.to_builtins(found) | {"cache_hit": found.cache_hit}
    unknown = () if found.input else _PAID
    unpriced = [name for name in _PRICED if found.unpriced and not told[name]]
    return told | dict.fromkeys((*unknown, *unpriced)) | {"window_share": found.largest.share}


# -- in words ----------------------------------------------------------------------------------------------------------


def _say(found: Account, info: SessionInfo, foreseen: Foreseen | None, *, is_left_out: bool) -> None:
    from rich.text import Text

    out = console()
    say_line(out, session_line(info))
    if found.largest.sent:
        say_whole(out, Text(_size(found)))
    _say_rules(out, found)
    if foreseen is not None:
        say_whole(out, Text(in_words(foreseen)))
    elif is_left_out:
        requests = many(found.requests, "request")
        command = f"holdfast stats {info.key[:SHORT]} --foresee"
        say_whole(out, Text(f"what its policy would have done about {requests} tells {clean(command)}"))
    _say_money(out, found)


def _size(found: Account) -> str:
    """Return how large a conversation got, and what was done about it."""
    largest = found.largest
    near = f", {largest.share:.0%} of a window of {largest.window:,}" if largest.share else ""
    tokens = about(largest.up, is_counted=largest.is_up_counted)
    up = f"{tokens} as it went up and was answered{near}" if largest.up else "none was answered"
    sent = about(largest.sent, is_counted=largest.is_counted)
    size = f"the largest request: {sent} tokens as its client sent it, {up}"
    done = f"{many(found.compactions, 'compaction')}, {many(found.avoided, 'overflow')} avoided"
    return f"{size}; {done}, {found.refused:,} refused by the provider"


def _say_rules(out: Any, found: Account) -> None:
    from rich.text import Text

    if not found.rules:
        out.print("nothing was reduced in it")
        return
    told = f"the next request saves {about(found.saved)} of {about(found.said)} tokens said"
    say_whole(out, Text(f"{told}; {many(found.requests, 'request')} so far saved {about(found.saved_since)}"))
    out.print()
    _say_table(out, _RULES, [_row(one) for one in found.rules])
    out.print()


def _row(one: Rule) -> tuple[str, ...]:
    return (clean(one.rule), f"{one.in_force:,}", f"{one.revoked:,}", f"{one.saved:,}", f"{one.saved_since:,}")


def _say_money(out: Any, found: Account) -> None:
    from rich.text import Text

    if found.input:
        hit = f"{found.cache_hit:.1%} of {found.input:,} tokens in came from the cache"
        more = f"; {many(found.untold, 'answer')} more told no usage and are not in this" if found.untold else ""
        say_whole(out, Text(f"{hit}; {found.output:,} tokens out; {_paid(found)}{more}"))
    else:
        out.print("no answer tells its usage; dollars are not known")
    told = ", ".join(f"{clean(why)} {count:,}" for why, count in found.breaks.items())
    if told:
        cost = f"{about(found.rewritten)} tokens were written anew"
        known = found.rewritten_dollars or not found.unpriced
        more = f", ${found.rewritten_dollars:,.2f} more than reading them" if known else ""
        say_whole(out, Text(f"breaks of the prefix: {told}; {cost}{more}"))
    else:
        out.print("the prefix never broke: every request extended the one before it")
    if found.saved_since and (found.saved_dollars or not found.unpriced):
        say_whole(out, Text(f"what was saved would have cost ${found.saved_dollars:,.2f} at the price of cached input"))
    say_whole(out, Text(f"{many(found.spills, 'text')} spilled, {found.spill_bytes:,} bytes"))


def _paid(found: Account) -> str:
    """Return what the calls cost whose prices are known."""
    if not found.unpriced:
        return f"${found.dollars:,.2f}"
    if not found.dollars:
        return "dollars are not known: no price of the model is (holdfast.toml may say one)"
    return f"${found.dollars:,.2f}, without {many(found.unpriced, 'call')} of models whose price is not known"


def _say_all(found: list[Account], total: Account) -> None:
    out = console()
    if not found:
        out.print("no sessions yet; holdfast import FILE takes one in")
        return
    short = shortest([one.session for one in found])
    _say_table(out, _SIZES, [*(_sizes(clean(short[one.session]), one) for one in found), _sizes("all", total)])
    out.print()
    _say_table(out, _SAVED, [*(_line(clean(short[one.session]), one) for one in found), _line("all", total)])


def _sizes(name: str, one: Account) -> tuple[str, ...]:
    largest = one.largest
    sizes = (largest.sent, largest.is_counted), (largest.up, largest.is_up_counted)
    tokens = (about(size, is_counted=is_counted) if size else "-" for size, is_counted in sizes)
    share = f"{largest.share:.0%}" if largest.share else "-"
    return (name, *tokens, share, *(f"{count:,}" for count in (one.compactions, one.avoided, one.refused)))


def _line(name: str, one: Account) -> tuple[str, ...]:
    hit = f"{one.cache_hit:.1%}" if one.input else "-"
    money = f"{one.dollars:,.2f}" if one.input and (one.dollars or not one.unpriced) else "-"
    breaks = f"{sum(one.breaks.values()):,}"
    return (
        name,
        f"{one.requests:,}",
        f"{one.saved:,}",
        f"{one.saved_since:,}",
        hit,
        money,
        breaks,
        f"{one.spill_bytes:,}",
    )


class _Columns(NamedTuple):
    """The heads of a table, and which columns go where there is no room for all, in this order."""

    heads: tuple[str, ...]
    spare: tuple[int, ...]


_RULES = _Columns(("rule", "in force", "undone", "saved now", "saved over all"), (2, 1, 4))
_SIZES = _Columns(
    ("session", "largest sent", "went up", "of window", "compactions", "overflows avoided", "refused"), (6, 5, 4, 1)
)
_SAVED = _Columns(
    ("session", "requests", "saved now", "saved over all", "cache hit", "dollars", "breaks", "spilled bytes"),
    (7, 6, 3, 4, 1),
)


def _say_table(out: Console, columns: _Columns, rows: list[tuple[str, ...]]) -> None:
    """Print a table whose figures are whole; what there is no room for is named below."""
    from rich.table import Table
    from rich.text import Text

    kept = fitting([columns.heads, *rows], columns.spare, out.width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    is_wide = sum(max(map(len, column)) + GAP for column in zip(columns.heads, *rows, strict=True)) - GAP <= out.width
    for number, at in enumerate(kept):
        head = columns.heads[at] if is_wide else columns.heads[at].replace(" ", "\n")
        table.add_column(head, justify="right" if number else "left", vertical="bottom", overflow="fold")
    for row in rows:
        table.add_row(*(row[at] for at in kept))
    say_table(out, table)
    left = [name for at, name in enumerate(columns.heads) if at not in kept]
    if left:
        say_whole(out, Text(f"in a wider terminal, or with --json: {', '.join(left)}", style="dim"))
