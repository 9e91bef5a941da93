"""``holdfast stats``: report how large sessions got, what was saved, and what that cost in cache."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import msgspec

from holdfast import config
from holdfast.cli.files.user_paths import describe_missing_store, open_named_store, store_option
from holdfast.cli.output.live_view import show_live_view
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.session_filters import SessionOptions, session_options
from holdfast.cli.output.session_line import format_session_line
from holdfast.cli.output.terminal import (
    COLUMN_GAP,
    ProgressBar,
    choose_columns,
    make_console,
    make_json_option,
    print_json,
    print_line,
    print_more_hint,
    print_table,
    print_wrapped,
)
from holdfast.errors import HoldfastError, StoreLocked
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import shorten_session_keys
from holdfast.reports.requests.changed_fields import list_change_lines
from holdfast.reports.requests.dry_run import PolicyForecast, describe_forecast, forecast_session
from holdfast.reports.requests.request_size import TargetCache, format_tokens
from holdfast.reports.sessions.account import (
    RuleSavings,
    SessionSavings,
    sum_savings,
)
from holdfast.reports.sessions.history import SHORT_ID
from holdfast.reports.sessions.session_savings import compute_savings_of_entries, load_session_savings
from holdfast.reports.sessions.usage_groups import (
    GROUP_KINDS,
    CallFilter,
    GroupKind,
    LeftOutSession,
    UsageReader,
    UsageReport,
    UsageTotal,
)
from holdfast.state.cache_misses import UNREPORTED
from holdfast.store.base import SessionInfo, SessionStore

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

EXAMPLES = """\
\b
Examples:
  holdfast stats 4d56
  holdfast stats
  holdfast stats 4d56 --json
  holdfast stats --by day --since 7d
  holdfast stats --by model --project .
  holdfast stats --by day --live
"""
DEFAULT_STATS_LIMIT = 100
"""Sessions listed without --limit. Chosen by judgement, as for ls."""
MAX_UNASKED_DRY_RUN = 5_000
"""Requests of a session up to which the forecast runs without --foresee; planning them takes a second or two. With five
times as many it took longer than all other figures together."""
LIVE_INTERVAL = 5.0
"""Seconds between two looks with --live. Chosen by judgement: a session that changed is read again from its beginning,
which takes up to a second for each 100 MB."""


@click.command("stats", epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option(
    "--by",
    type=click.Choice(GROUP_KINDS),
    help="One line for each day, week (from Monday), month, folder, model, client or session, with its costs.",
)
@session_options
@click.option("--live", "is_live", is_flag=True, help="Show the groups again whenever they change, until Ctrl-C.")
@click.option(
    "-n",
    "--limit",
    type=IntegerParamType(1),
    help=(f"Number of sessions or groups to list; totals cover all. [default: {DEFAULT_STATS_LIMIT}; all with --json]"),
)
@click.option(
    "--foresee/--no-foresee",
    "wants_foresight",
    default=None,
    help=(f"Forecast what the policy would have done to SESSION. [default: up to {MAX_UNASKED_DRY_RUN:,} requests]"),
)
@store_option
@make_json_option("the figures")
def stats_command(
    session: str | None,
    by: GroupKind | None,
    chosen: SessionOptions,
    limit: int | None,
    store: str | None,
    *,
    is_live: bool,
    wants_foresight: bool | None,
    as_json: bool,
) -> None:
    """Report how large sessions got, what was saved, and what that cost in cache.

    SESSION is the beginning of an id. Figures cover all branches; the tokens that the next request saves are those of
    the current branch. The largest request is given as its client sent it and as it was sent to the provider. A ~ marks
    an estimate, and all saved tokens are estimates, calibrated by the provider's counts in the session; other tokens
    are as reported, and dollars use the model's prices.

    At the end stand the fields of requests that are sent changed because the provider refuses what the client sends:
    which, why and since when.

    A cache break is a request that no longer begins like the one before it, so the tokens after that point are written
    to the cache again. A cache miss is a request of which the provider read clearly less from its cache than it could
    have; the cause is a decision, the client's edit, a cache that expired, another model, other tools, or not known
    (holdfast why REQUEST explains each).

    For a session that was only observed, a forecast shows what its policy would have done. Each request must be planned
    for that, so a long session is forecast only with --foresee.

    With --by there is one table of what was used, paid and saved, and it reads no messages, so it is much faster. A
    request counts for the day on which it was answered, for its own model, for the folder and the client of its
    session. Dollars are split into those for input read from the cache, written to it, fresh input, and output. The
    options that choose days, folders, models and clients imply --by session. With --live and no terminal, the table is
    printed once.
    """
    is_grouped = by is not None or chosen.has_any or is_live
    if is_grouped and wants_foresight is not None:
        raise click.UsageError("--foresee and --no-foresee are about one whole session; leave out --by and its filters")
    if is_live and as_json:
        raise click.UsageError("--live is for a terminal; without it, --json prints the figures as they are now")
    if is_grouped:
        usage_view = _UsageView(store, session, by or "session", chosen)
        _run_by_group(usage_view, limit, is_live=is_live, as_json=as_json)
        return
    if session is None and wants_foresight is not None:
        raise click.UsageError("--foresee and --no-foresee need one session; give the beginning of its id")
    if session is None:
        _run_for_all_sessions(store, limit, as_json=as_json)
    else:
        _run_for_session(store, session, wants_foresight=wants_foresight, as_json=as_json)


class _UsageView:
    """The usage of the store by group, as the options choose it; it is read again for each view."""

    def __init__(self, store: str | None, session: str | None, by: GroupKind, chosen: SessionOptions) -> None:
        self.store_option = store
        self._session = session
        self._by = by
        self.chosen = chosen
        configuration = config.load_configuration()
        self._reader = UsageReader(configuration.catalog, TargetCache(configuration))

    def build_call_filter(self, session: str = "") -> CallFilter:
        """Return which calls count today; ``session`` is the id of the only session, if one was named."""
        since, until = self.chosen.resolve_days()
        return CallFilter(self._by, since, until, self.chosen.time_zone, self.chosen.build_session_filter(session))

    def read_report(self, waiting: ProgressBar) -> UsageReport:
        """Read what changed since the last time, and return the groups."""
        # Wrong days are an error before anything is read.
        self.build_call_filter()
        with open_named_store(self.store_option, readonly=True) as store:
            key = store.get_session(self._session).key if self._session is not None else ""
            call_filter = self.build_call_filter(key)
            infos = [info for info in store.list_sessions() if call_filter.can_have_calls(info)]
            for info in waiting.track_items("sessions", infos):
                self._reader.read_session(store, info, call_filter)
        return self._reader.build_report(infos)


def _run_by_group(usage_view: _UsageView, limit: int | None, *, is_live: bool, as_json: bool) -> None:
    with ProgressBar(is_wanted=not as_json) as waiting:
        report = usage_view.read_report(waiting)
    out = make_console()
    if as_json:
        print_json(_encode_usage(report, usage_view.build_call_filter(), limit))
    elif is_live and out.is_terminal:
        _show_live_usage(usage_view, out, report, limit or DEFAULT_STATS_LIMIT)
    else:
        _print_usage(usage_view, out, report, limit or DEFAULT_STATS_LIMIT)


def _print_usage(usage_view: _UsageView, out: Console, report: UsageReport, limit: int) -> None:
    if not report.groups and (why := describe_missing_store(usage_view.store_option)):
        click.echo(why, err=True)
        return
    print_table(out, _render_report(usage_view, report, limit, out.width))
    print_more_hint(len(report.groups) - limit, "group", "--limit")


def _show_live_usage(usage_view: _UsageView, out: Console, report: UsageReport, limit: int) -> None:
    silent = ProgressBar(is_wanted=False)

    def build_view() -> RenderableType:
        nonlocal report
        # A long write of another process; the next look finds it done.
        with suppress(StoreLocked):
            report = usage_view.read_report(silent)
        view = _render_report(usage_view, report, limit, out.width)
        excess = len(out.render_lines(view, pad=False)) - (out.height - 1)
        if excess > 0:
            # The total is the last line, and a view that is too high would lose it.
            shown_count = min(limit, len(report.groups))
            view = _render_report(usage_view, report, max(1, shown_count - excess), out.width)
        return view

    # Ctrl-C is the way to end the view, so no error.
    with suppress(KeyboardInterrupt):
        show_live_view(out, build_view, LIVE_INTERVAL)


def _render_report(usage_view: _UsageView, report: UsageReport, limit: int, width: int) -> RenderableType:
    """Return the table, or in words why there is none."""
    from rich.console import Group
    from rich.text import Text

    from holdfast.cli.reports.usage_table import list_left_out_lines, render_usage

    if report.groups:
        return render_usage(report, limit, width)
    lines = [Text(line) for line in list_left_out_lines(report.left_out)]
    if usage_view.chosen.has_any:
        lines.append(Text("no request matches; holdfast stats --by model, project or tool lists what there is"))
    else:
        lines.append(
            Text("no requests yet; start a client with holdfast run, or add a session with holdfast import FILE")
        )
    return Group(*lines)


def _encode_usage(report: UsageReport, call_filter: CallFilter, limit: int | None) -> dict[str, Any]:
    """Return the groups for JSON; the name of a group is null if the log does not say it."""
    groups = []
    for name, total in list(report.groups.items())[:limit]:
        groups.append({report.by: name or None, **_encode_usage_total(total)})
    return {
        "by": report.by,
        "time_zone": "local" if call_filter.time_zone is None else "UTC",
        "since": call_filter.since and call_filter.since.isoformat(),
        "until": call_filter.until and call_filter.until.isoformat(),
        "groups": groups,
        "all": _encode_usage_total(report.total),
        "left_out": msgspec.to_builtins(report.left_out),
    }


def _encode_usage_total(total: UsageTotal) -> dict[str, Any]:
    """Return the figures for JSON; dollars that are not known are null."""
    from holdfast.cli.reports.usage_table import has_known_cost, has_known_savings

    record: dict[str, Any] = {"dollars": total.dollars, **msgspec.to_builtins(total)}
    record["saved_tokens"] = round(total.saved_tokens)
    if not has_known_cost(total):
        record |= dict.fromkeys([name for name in record if name.endswith("dollars") and name != "saved_dollars"])
    if not has_known_savings(total):
        record["saved_dollars"] = None
    return record


def _run_for_all_sessions(store: str | None, limit: int | None, *, as_json: bool) -> None:
    from holdfast.cli.reports.usage_table import list_left_out_lines

    configuration = config.load_configuration()
    with open_named_store(store, readonly=True) as there, ProgressBar(is_wanted=not as_json) as waiting:
        infos = there.list_sessions()
        places = TargetCache(configuration)
        accounts = []
        left_out: list[LeftOutSession] = []
        for info in waiting.track_items("sessions", infos):
            try:
                accounts.append(load_session_savings(there, info, configuration.catalog, places))
            except StoreLocked:
                raise
            except HoldfastError as error:
                left_out.append(LeftOutSession(info.key, str(error)))
        total = sum_savings(accounts)
    why = "" if infos else describe_missing_store(store)
    if why:
        click.echo(why, err=True)
    if as_json:
        print_json(
            {
                "sessions": [*map(_encode_account, accounts[:limit])],
                "all": _encode_account(total),
                "left_out": msgspec.to_builtins(left_out),
            }
        )
    elif not why:
        limit = limit or DEFAULT_STATS_LIMIT
        if accounts or not left_out:
            _print_accounts(accounts[:limit], total)
        print_more_hint(len(accounts[limit:]), "session", "--limit")
        for line in list_left_out_lines(left_out):
            click.echo(line)


def _run_for_session(
    store: str | None,
    session: str,
    *,
    wants_foresight: bool | None,
    as_json: bool,
) -> None:
    configuration = config.load_configuration()
    with open_named_store(store, readonly=True) as there, ProgressBar(is_wanted=not as_json) as waiting:
        info = there.get_session(session)
        report = _report_session(there, info, configuration, waiting, wants_foresight=wants_foresight)
    if not as_json:
        _print_account(report.account, info, report.forecast, is_left_out=report.is_left_out)
        return
    record = _encode_account(report.account)
    # A forecast that was left out is null, so that scripts can tell it from a session with decisions.
    if report.forecast is not None or report.is_left_out:
        record["foreseen"] = msgspec.to_builtins(report.forecast)
    print_json(record)


class _SessionReport(NamedTuple):
    """The account of one session, with the forecast of its policy if it was only observed."""

    account: SessionSavings
    forecast: PolicyForecast | None = None
    is_left_out: bool = False
    """Whether a forecast would have taken too long, or was not wanted."""


def _report_session(
    store: SessionStore,
    info: SessionInfo,
    configuration: config.Configuration,
    waiting: ProgressBar,
    *,
    wants_foresight: bool | None,
) -> _SessionReport:
    """Compute the account of a session and, if it was only observed, the forecast of its policy."""
    waiting.begin_part("reading the log")
    entries = store.read_entries(info.key)
    waiting.begin_part("computing costs")
    account, state = compute_savings_of_entries(
        store,
        info,
        configuration.catalog,
        TargetCache(configuration),
        entries,
    )
    # A session without any decision was only observed.
    if account.rules or not account.requests:
        return _SessionReport(account)
    if wants_foresight is None:
        wants_foresight = account.requests <= MAX_UNASKED_DRY_RUN
    if not wants_foresight:
        return _SessionReport(account, is_left_out=True)
    waiting.begin_part("forecasting the policy", account.requests)
    policy = state.policy_name or "holdfast"
    return _SessionReport(account, forecast_session(info, entries, configuration, policy, state, waiting.advance))


_USAGE_FIGURES = ("input", "output", "cache_read", "cache_write", "dollars", "cache_hit")
"""Figures that come from the usage in answers."""
_PRICE_FIGURES = ("dollars", "saved_dollars", "rewritten_dollars")
"""Figures that need prices."""


def _encode_account(account: SessionSavings) -> dict[str, Any]:
    """Return the figures for JSON; those that no answer reported are null."""
    record: dict[str, Any] = msgspec.to_builtins(account) | {"cache_hit": account.cache_hit}
    unknown_fields: list[str] = []
    if not account.input:
        unknown_fields += _USAGE_FIGURES
    if account.unpriced_calls:
        # A sum above 0 has at least the calls with known prices; a 0 would look like a price of nothing.
        unknown_fields += [name for name in _PRICE_FIGURES if not record[name]]
    return record | dict.fromkeys(unknown_fields) | {"window_share": account.largest.share}


# -- in words ----------------------------------------------------------------------------------------------------------


def _print_account(
    account: SessionSavings,
    info: SessionInfo,
    foreseen: PolicyForecast | None,
    *,
    is_left_out: bool,
) -> None:
    from rich.text import Text

    out = make_console()
    print_line(out, format_session_line(info))
    if account.largest.from_client:
        print_wrapped(out, Text(_format_largest(account)))
    _print_rules(out, account)
    if foreseen is not None:
        print_wrapped(out, Text(describe_forecast(foreseen)))
    elif is_left_out:
        requests = format_count(account.requests, "request")
        command = f"holdfast stats {info.key[:SHORT_ID]} --foresee"
        print_wrapped(
            out, Text(f"to forecast what its policy would have done to {requests}: {clean_single_line(command)}")
        )
    _print_costs(out, account)
    _print_changed_fields(out, account)


def _print_changed_fields(console: Any, account: SessionSavings) -> None:
    from rich.text import Text

    for line in list_change_lines(account.changed_fields):
        print_wrapped(console, Text(line))


def _format_largest(account: SessionSavings) -> str:
    """Describe the largest request, and how overflows were handled."""
    largest = account.largest
    near = f", {largest.share:.0%} of a window of {largest.window:,}" if largest.share else ""
    tokens = format_tokens(largest.sent_upstream, is_counted=largest.is_upstream_counted)
    up = "no request was answered"
    if largest.sent_upstream:
        up = f"{tokens} as it was sent and answered{near}"
    sent_tokens = format_tokens(largest.from_client, is_counted=largest.is_counted)
    size = f"largest request: {sent_tokens} tokens from the client, {up}"
    counts = (
        f"{format_count(account.compactions, 'compaction')}, "
        f"{format_count(account.avoided_overflows, 'overflow')} avoided"
    )
    return f"{size}; {counts}, {account.refusals:,} refused by the provider"


def _print_rules(console: Any, account: SessionSavings) -> None:
    from rich.text import Text

    if not account.rules:
        console.print("nothing was reduced")
        return
    savings = (
        f"the next request saves {format_tokens(account.saved_tokens)} of {format_tokens(account.said_tokens)} tokens"
    )
    print_wrapped(
        console,
        Text(
            f"{savings}; {format_count(account.requests, 'request')} so far saved "
            f"{format_tokens(account.saved_in_total)}"
        ),
    )
    console.print()
    _print_stats_table(console, _RULE_COLUMNS, [_make_rule_row(rule) for rule in account.rules])
    console.print()


def _make_rule_row(rule: RuleSavings) -> tuple[str, ...]:
    return (
        clean_single_line(rule.rule),
        f"{rule.in_force:,}",
        f"{rule.revoked_edits:,}",
        f"{rule.saved_tokens:,}",
        f"{rule.saved_in_total:,}",
    )


def _print_costs(console: Any, account: SessionSavings) -> None:
    from rich.text import Text

    if account.input:
        hit = f"{account.cache_hit:.1%} of {account.input:,} tokens in came from the cache"
        suffix = ""
        if account.answers_without_usage:
            suffix = f"; {format_count(account.answers_without_usage, 'answer')} without usage not included"
        print_wrapped(console, Text(f"{hit}; {account.output:,} tokens out; {_format_call_costs(account)}{suffix}"))
    else:
        console.print("no answer reported usage, so the cost is unknown")
    breaks = ", ".join([f"{clean_single_line(why)} {count:,}" for why, count in account.breaks.items()])
    if breaks:
        cost = f"{format_tokens(account.rewritten)} tokens were written to the cache again"
        # 0 dollars would look like a price of nothing if the prices are unknown.
        has_price = account.rewritten_dollars or not account.unpriced_calls
        suffix = ""
        if has_price:
            suffix = f", ${account.rewritten_dollars:,.2f} more than reading them"
        print_wrapped(console, Text(f"cache breaks: {breaks}; {cost}{suffix}"))
    else:
        console.print("the cache never broke: every request extended the one before it")
    _print_cache_misses(console, account)
    _print_unreported_requests(console, account)
    if account.saved_in_total and (account.saved_dollars or not account.unpriced_calls):
        print_wrapped(
            console,
            Text(f"the saved tokens would have cost ${account.saved_dollars:,.2f} at the price of cached input"),
        )
    print_wrapped(console, Text(f"{format_count(account.spills, 'text')} spilled, {account.spill_bytes:,} bytes"))


def _print_cache_misses(console: Any, account: SessionSavings) -> None:
    """Print how many requests missed the cache for each cause, most tokens first, and what that cost."""
    from rich.text import Text

    misses = []
    for cause, total in sorted(account.cache_misses.items(), key=lambda item: -item[1].tokens):
        if cause == UNREPORTED:
            continue
        money = "" if total.dollars is None else f", ${total.dollars:,.2f}"
        misses.append(f"{cause} {total.count:,} ({format_tokens(total.tokens)} tokens{money})")
    if misses:
        print_wrapped(console, Text(f"cache misses, with what they cost more than reads: {'; '.join(misses)}"))


def _print_unreported_requests(console: Any, account: SessionSavings) -> None:
    """Print how many requests say nothing about the cache, so that nobody takes them for hits."""
    from rich.text import Text

    unreported = account.cache_misses.get(UNREPORTED)
    if unreported is not None:
        requests = format_count(unreported.count, "request")
        print_wrapped(console, Text(f"{requests} without figures about the cache: a miss would not be seen"))


def _format_call_costs(account: SessionSavings) -> str:
    """Format the cost of the calls with known prices."""
    if not account.unpriced_calls:
        return f"${account.dollars:,.2f}"
    if not account.dollars:
        return "cost unknown: the model has no known price (set one in holdfast.toml)"
    return (
        f"${account.dollars:,.2f}, without {format_count(account.unpriced_calls, 'call')} of models whose "
        "price is unknown"
    )


def _print_accounts(accounts: list[SessionSavings], total: SessionSavings) -> None:
    out = make_console()
    if not accounts:
        out.print("no sessions yet; add one with holdfast import FILE")
        return
    short_keys = shorten_session_keys([account.session for account in accounts])
    size_rows = []
    savings_rows = []
    for account in accounts:
        name = clean_single_line(short_keys[account.session])
        size_rows.append(_make_size_row(name, account))
        savings_rows.append(_make_savings_row(name, account))
    size_rows.append(_make_size_row("all", total))
    savings_rows.append(_make_savings_row("all", total))
    _print_stats_table(out, _SIZE_COLUMNS, size_rows)
    out.print()
    _print_stats_table(out, _SAVING_COLUMNS, savings_rows)
    _print_cache_misses(out, total)
    _print_changed_fields(out, total)


def _make_size_row(name: str, account: SessionSavings) -> tuple[str, ...]:
    largest = account.largest
    from_client = "-"
    if largest.from_client:
        from_client = format_tokens(largest.from_client, is_counted=largest.is_counted)
    sent = "-"
    if largest.sent_upstream:
        sent = format_tokens(largest.sent_upstream, is_counted=largest.is_upstream_counted)
    share = f"{largest.share:.0%}" if largest.share else "-"
    counts = (account.compactions, account.avoided_overflows, account.refusals)
    return (name, from_client, sent, share, *(f"{count:,}" for count in counts))


def _make_savings_row(name: str, account: SessionSavings) -> tuple[str, ...]:
    hit = f"{account.cache_hit:.1%}" if account.input else "-"
    money = "-"
    if account.input and (account.dollars or not account.unpriced_calls):
        money = f"{account.dollars:,.2f}"
    breaks = f"{sum(account.breaks.values()):,}"
    return (
        name,
        f"{account.requests:,}",
        f"{account.saved_tokens:,}",
        f"{account.saved_in_total:,}",
        hit,
        money,
        breaks,
        f"{account.spill_bytes:,}",
    )


class _StatsColumns(NamedTuple):
    """The headings of a table, and the columns to drop in a narrow terminal, in this order."""

    heads: tuple[str, ...]
    spare: tuple[int, ...]


_RULE_COLUMNS = _StatsColumns(("rule", "in force", "undone", "saved now", "saved in total"), (2, 1, 4))
_SIZE_COLUMNS = _StatsColumns(
    ("session", "largest request", "after reduction", "% of window", "compactions", "overflows avoided", "refused"),
    (6, 5, 4, 1),
)
_SAVING_COLUMNS = _StatsColumns(
    ("session", "requests", "saved now", "saved in total", "cache hit", "dollars", "cache breaks", "spilled bytes"),
    (7, 6, 3, 4, 1),
)


def _print_stats_table(console: Console, columns: _StatsColumns, rows: list[tuple[str, ...]]) -> None:
    """Print a table without cutting any figure; columns that do not fit are named below it."""
    from rich.table import Table
    from rich.text import Text

    column_indexes = choose_columns([columns.heads, *rows], columns.spare, console.width)
    table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), pad_edge=False)
    widths = [max(map(len, column)) for column in zip(columns.heads, *rows, strict=True)]
    is_wide = sum(widths) + COLUMN_GAP * (len(widths) - 1) <= console.width
    for number, at in enumerate(column_indexes):
        head = columns.heads[at]
        # Figures are narrower than most headings, so headings on several lines save width.
        if not is_wide:
            head = head.replace(" ", "\n")
        # The first column is a name, the others are figures.
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(head, justify=justify, vertical="bottom", overflow="fold")
    for row in rows:
        table.add_row(*[row[at] for at in column_indexes])
    print_table(console, table)
    hidden_heads = [name for at, name in enumerate(columns.heads) if at not in column_indexes]
    if hidden_heads:
        print_wrapped(
            console, Text(f"hidden columns (use a wider terminal, or --json): {', '.join(hidden_heads)}", style="dim")
        )
