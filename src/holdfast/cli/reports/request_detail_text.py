"""Print the description of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.cli.output.terminal import print_command, print_wrapped
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import format_time
from holdfast.reports.requests.changed_fields import list_change_lines
from holdfast.reports.requests.request_detail import RepeatedDecision, RequestDetail
from holdfast.reports.requests.request_size import (
    format_tokens,
)
from holdfast.reports.sessions.history import (
    SHORT_ID,
)


def print_request_detail(console: Any, request_detail: RequestDetail, session: str) -> None:
    """Print ``request_detail``; ``session`` is the session's name in commands."""
    from rich.text import Text

    head = (
        f"request {clean_single_line(request_detail.request)[:SHORT_ID]} {format_time(request_detail.at)} to "
        f"{clean_single_line(request_detail.model) or 'an unnamed model'}"
    )
    console.print(Text(" ".join(head.split()), "bold"))
    client_text = (
        f"from the client: {format_count(request_detail.messages, 'message')}, "
        f"{format_client_size(request_detail)} tokens"
    )
    if not request_detail.window:
        print_wrapped(console, Text(f"{client_text} without system prompt and tools"))
        print_wrapped(console, Text(f"never sent: {clean_single_line(request_detail.failure)}", "red"))
        return
    share = request_detail.shown_tokens / max(1, request_detail.window)
    print_wrapped(console, Text(client_text))
    upstream_text = (
        f"sent to the provider: {format_count(request_detail.shown_messages, 'message')}, "
        f"{format_upstream_size(request_detail)} tokens"
    )
    print_wrapped(console, Text(f"{upstream_text}, {share:.1%} of a window of {request_detail.window:,}"))
    for why in request_detail.refusals:
        print_wrapped(console, Text(f"refused before: {clean_single_line(why)}", "red"))
    _print_decisions(
        console,
        f"decided for it by policy {clean_single_line(request_detail.policy)}",
        request_detail.new_decisions,
    )
    _print_decisions(console, "decided earlier and repeated", request_detail.earlier_decisions)
    if not (request_detail.new_decisions or request_detail.earlier_decisions):
        end = "" if request_detail.changed_fields else ": it was sent unchanged"
        console.print(f"no decisions{end}")
    for line in list_change_lines(request_detail.changed_fields):
        print_wrapped(console, Text(line))
    print_wrapped(console, Text(_format_cost(request_detail)))
    if request_detail.cache_miss is not None and request_detail.usage is not None:
        cause = request_detail.cache_miss.cause
        head = "cache" if cause == "unreported" else f"cache miss ({cause})"
        print_wrapped(console, Text(f"{head}: {clean_single_line(request_detail.cache_miss_text)}"))
    if request_detail.new_decisions or request_detail.earlier_decisions:
        request = clean_single_line(request_detail.request)[:SHORT_ID]
        print_command(console, Text(f"see the change: holdfast diff {request}", style="dim"))
        print_command(console, Text(f"see its contents: holdfast context {request}", style="dim"))
        print_command(console, Text(f"undo a decision: holdfast undo {session} ID", style="dim"))


def format_client_size(request: RequestDetail) -> str:
    """Format the size of a request from its client; a size that includes omitted messages is an estimate."""
    return format_tokens(request.tokens, is_counted=request.is_counted and request.tokens == request.shown_tokens)


def format_upstream_size(request: RequestDetail) -> str:
    """Format the size of a request as sent to the provider."""
    return format_tokens(request.shown_tokens, is_counted=request.is_counted)


def _print_decisions(console: Any, head: str, decisions: Sequence[RepeatedDecision]) -> None:
    from rich.text import Text

    if decisions:
        console.print(Text(f"{head}:"))
    for decision in decisions:
        print_wrapped(
            console,
            Text(
                f"  {clean_single_line(decision.entry)[:SHORT_ID]} {clean_single_line(decision.description)}", "yellow"
            ),
        )


def _format_cost(request: RequestDetail) -> str:
    if request.failure:
        return f"not answered: {clean_single_line(request.failure)}"
    used = request.usage
    stop_text = f", ended with {clean_single_line(request.stop, 40)}" if request.stop else ""
    if used is None:
        return f"cost unknown: its answer reported no usage{stop_text}"
    cached = f" ({used.cache_read:,} from the cache, {used.cache_write:,} written to it)"
    money = "price unknown" if request.dollars is None else f"${request.dollars:,.4f}"
    doubt = "" if request.is_counted else " (by an implausible count)"
    return f"cost{doubt}: {used.input:,} tokens in{cached}, {used.output:,} out, {money}{stop_text}"
