"""What a proxy of several clients did while one of them ran."""

from __future__ import annotations

import msgspec

from holdfast.cli.clients.shared_proxy import ProxyStats, subtract_stats
from holdfast.cli.proxy_options import count_proxy_requests, summarize_run
from holdfast.events import EditsDecided
from holdfast.proxy.metrics.health import Health


def read_stats(health):
    """Return what ``/stats`` says, as a client of it reads it."""
    return msgspec.json.decode(msgspec.json.encode(health.build_stats()), type=ProxyStats)


def test_difference_of_two_looks_has_only_what_happened_between_them():
    """Requests by API and outcome, also of an API that is new, and saved tokens; what was before does not count."""
    health = Health()
    health.begin_request("anthropic").finish("managed", 200)
    health.count_event(EditsDecided("s1", saves=5_000))
    before = read_stats(health)
    health.begin_request("anthropic").finish("managed", 200)
    health.begin_request("openai-chat").finish("failed", 0)
    health.count_event(EditsDecided("s1", saves=300))
    stats = subtract_stats(read_stats(health), before)
    assert count_proxy_requests(stats) == 2
    assert stats["requests"]["anthropic"]["managed"] == 1
    assert summarize_run(stats, None) == ["newly reduced by ~300 tokens", "1 failed"]


def test_difference_of_an_idle_proxy_is_empty():
    """Nothing is said to have happened when nothing did."""
    health = Health()
    health.begin_request("anthropic").finish("managed", 200)
    stats = subtract_stats(read_stats(health), read_stats(health))
    assert count_proxy_requests(stats) == 0
    assert summarize_run(stats, None) == []
