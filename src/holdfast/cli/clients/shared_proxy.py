"""Say what a proxy that was running before did while a client ran.

Such a proxy counts the requests of all its clients together and does not know which process sent one, so the numbers
are those of the time, not of the client, and the line says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.cli.clients.client_check import LOCAL_TIMEOUT, fetch_url
from holdfast.cli.proxy_options import count_proxy_requests, summarize_run
from holdfast.errors import FormatError
from holdfast.messages.text.counts import format_count
from holdfast.proxy.http.headers import TOKEN_HEADER
from holdfast.state.codec.reading import get_decoder

SETTLE_SECONDS = 0.2
"""Seconds to wait before the last look: a request is counted when it is recorded, milliseconds after its answer."""
_OK = 200


class ProxyStats(msgspec.Struct, frozen=True):
    """The counts of a proxy since its start that a summary needs, as ``/stats`` has them."""

    since: str
    mode: str
    requests: dict[str, dict[str, int]]
    overflows: dict[str, int]
    tokens_saved: int
    changed_fields: int


def fetch_proxy_stats(proxy: str, token: str = "") -> ProxyStats:
    """Return the counts of the proxy at the address ``proxy``. Raises ``FormatError`` if it gives none."""
    headers = {TOKEN_HEADER.decode(): token} if token else {}
    answer = fetch_url(f"{proxy}/stats", LOCAL_TIMEOUT, headers)
    if isinstance(answer, str):
        raise FormatError(f"it does not answer any more ({answer})")
    if answer.status != _OK:
        raise FormatError(f"it answered {answer.status} to GET /stats")
    try:
        return get_decoder(ProxyStats).decode(answer.body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise FormatError(f"its counts are of another version ({error}); restart it") from error


def describe_shared_run(client: str, proxy: str, token: str, before: ProxyStats | FormatError) -> str:
    """Say what the proxy did for all its clients since ``before``, or why that is not known."""
    time.sleep(SETTLE_SECONDS)
    try:
        # A failure of the first look is raised here, because it has to be said at the end only.
        if isinstance(before, FormatError):
            raise before
        after = fetch_proxy_stats(proxy, token)
    except FormatError as error:
        return f"what {proxy} did for {client} is not known: {error}"
    if after.since != before.since:
        return f"what {proxy} did for {client} is not known: it was started anew meanwhile, at {after.since}"
    stats = subtract_stats(after, before)
    count = count_proxy_requests(stats)
    if not count:
        return f"no request reached {proxy} while {client} ran; docs/clients.md explains how to point it there"
    effects = ["nothing was changed"] if after.mode == "observe" else []
    parts = [
        f"{format_count(count, 'request')} reached {proxy} while {client} ran",
        *effects,
        *summarize_run(stats, None),
        "counted for all clients of that proxy together",
        f"holdfast watch --url {proxy}",
    ]
    return " · ".join(parts)


def subtract_stats(after: ProxyStats, before: ProxyStats) -> Mapping[str, Any]:
    """Return the counts from one look to another of the same proxy, in the form of ``/stats``."""
    requests = {}
    for api, states in after.requests.items():
        states_before = before.requests.get(api, {})
        requests[api] = {state: count - states_before.get(state, 0) for state, count in states.items()}
    overflows = {name: count - before.overflows.get(name, 0) for name, count in after.overflows.items()}
    return {
        "requests": requests,
        "overflows": overflows,
        "tokens_saved": after.tokens_saved - before.tokens_saved,
        "changed_fields": after.changed_fields - before.changed_fields,
    }
