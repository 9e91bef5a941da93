"""``holdfast stats``: what the reductions of a session saved, and what they cost in cache."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast import config
from holdfast.cli.describing import session_line, shortest
from holdfast.cli.explaining import read_log
from holdfast.cli.places import opened, store_option
from holdfast.cli.saving import Account, Rule, account, together
from holdfast.cli.terminal import clean, console, json_option, many, say_json, say_line, say_whole
from holdfast.config import Catalog
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.naming import named_blobs

EXAMPLES = """\
\b
Examples:
  holdfast stats 4d56
  holdfast stats
  holdfast stats 4d56 --json
"""


@click.command("stats", epilog=EXAMPLES)
@click.argument("session", required=False)
@store_option
@json_option("the figures")
def command(session: str | None, store: str | None, *, as_json: bool) -> None:
    """Tell what was saved, and what that cost in cache: rule by rule for a session, or a line for each.

    SESSION is the beginning of an id. Figures are of the branch on which the session goes on. Tokens that were saved
    are the estimator's; tokens of answers are as the provider reported them, and dollars are of the model's prices.
    A break is a request that no longer begins as the one before it: what was cached behind that place is written anew.
    """
    catalog = config.load()
    with opened(store, readonly=True) as there:
        infos = [there.session(session)] if session is not None else there.sessions()
        found = [account_of(there, info, catalog) for info in infos]
    total = together(found)
    if as_json:
        say_json(_told(found[0]) if session is not None else {"sessions": [*map(_told, found)], "all": _told(total)})
    elif session is not None:
        _say(found[0], infos[0])
    else:
        _say_all(found, total)


def account_of(store: SessionStore, info: SessionInfo, catalog: Catalog) -> Account:
    """Return what was saved in a session, with the sizes of its spilled texts."""
    log = read_log(store, info.key)
    hashes = named_blobs(log.entries)
    sizes = [store.blobs.size(hash_) for hash_ in hashes if store.blobs.has(hash_)]
    found = account(info.key, log.entries, catalog, info.model)
    return msgspec.structs.replace(found, spills=len(hashes), spill_bytes=sum(sizes))


def _told(found: Account) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(found)
    return told | {"cache_hit": found.cache_hit}


# -- in words ----------------------------------------------------------------------------------------------------------


def _say(found: Account, info: SessionInfo) -> None:
    out = console()
    say_line(out, session_line(info))
    _say_rules(out, found)
    _say_money(out, found)


def _say_rules(out: Any, found: Account) -> None:
    from rich.text import Text

    if not found.rules:
        out.print("nothing was reduced in it")
        return
    told = f"the next request saves {found.saved:,} of {found.said:,} tokens"
    say_whole(out, Text(f"{told}; {many(found.requests, 'request')} so far saved {found.saved_since:,}"))
    out.print()
    out.print(_table(("rule", "in force", "undone", "saved now", "saved over all"), [_row(one) for one in found.rules]))
    out.print()


def _row(one: Rule) -> tuple[str, ...]:
    return (clean(one.rule), f"{one.in_force:,}", f"{one.revoked:,}", f"{one.saved:,}", f"{one.saved_since:,}")


def _say_money(out: Any, found: Account) -> None:
    from rich.text import Text

    if found.answers:
        hit = f"{found.cache_hit:.1%} of {found.input:,} tokens in came from the cache"
        say_whole(out, Text(f"{hit}; {found.output:,} tokens out; ${found.dollars:,.2f}"))
    else:
        out.print("no answer tells its usage; dollars are not known")
    told = ", ".join(f"{clean(why)} {count:,}" for why, count in found.breaks.items())
    if told:
        cost = f"{found.rewritten:,} tokens were written anew, ${found.rewritten_dollars:,.2f} more than reading them"
        say_whole(out, Text(f"breaks of the prefix: {told}; {cost}"))
    else:
        out.print("the prefix never broke: every request extended the one before it")
    if found.saved_since:
        say_whole(out, Text(f"what was saved would have cost ${found.saved_dollars:,.2f} at the price of cached input"))
    say_whole(out, Text(f"{many(found.spills, 'text')} spilled, {found.spill_bytes:,} bytes"))


def _say_all(found: list[Account], total: Account) -> None:
    out = console()
    if not found:
        out.print("no sessions yet; holdfast import FILE takes one in")
        return
    head = ("session", "requests", "saved now", "saved over all", "cache hit", "dollars", "breaks", "spilled bytes")
    short = shortest([one.session for one in found])
    out.print(_table(head, [*(_line(clean(short[one.session]), one) for one in found), _line("all", total)]))


def _line(name: str, one: Account) -> tuple[str, ...]:
    hit = f"{one.cache_hit:.1%}" if one.answers else "-"
    money = f"{one.dollars:,.2f}" if one.answers else "-"
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


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", no_wrap=not number, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
