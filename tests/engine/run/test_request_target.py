"""A request is planned for the window that it negotiated with a beta, where its model honours that."""

from __future__ import annotations

import json

import pytest

from holdfast.config import get_target, load_shipped_catalog, parse_catalog
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.run.request_target import resolve_request_target
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.store.memory import MemoryStore

BETA = "context-1m-2025-08-07"
USER = {"role": "user", "content": "hi"}


class Asking:
    """An upstream whose own headers ask for betas."""

    def __init__(self, *betas):
        self.betas = betas


def resolve(model, *betas, body=None, **options):
    """Return the window and its source for a request with these betas in header and body."""
    resources = EngineResources(MemoryStore(), Asking(*betas), **options)
    data = json.dumps({"model": model, "max_tokens": 9, "messages": [USER], **(body or {})}).encode()
    limits = resolve_request_target(resources, "anthropic", model, None, parse_request(data, "anthropic")).limits
    return limits.window, limits.window_source.partition(":")[0]


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-next-9", 1_000_000),
        ("our-house-alias", 1_000_000),
        ("claude-opus-5-5", 1_000_000),
        # The beta has had no effect on these since 2026-04-30, and older ones never had it.
        ("claude-sonnet-4-5-20250929", 200_000),
        ("claude-sonnet-4-20250514", 200_000),
        ("claude-opus-4-5", 200_000),
        ("claude-haiku-4-5", 200_000),
        ("claude-3-5-haiku-latest", 200_000),
    ],
)
def test_request_with_the_beta_is_planned_for_the_window_that_the_model_honours(model, window):
    """In the header or in the body: the beta raises the window, unless the catalogue knows that it does nothing."""
    assert resolve(model, "other-beta", BETA)[0] == window
    assert resolve(model, body={"anthropic_beta": [BETA]})[0] == window
    assert resolve(model, body={"betas": ["x", BETA]})[0] == window


def test_request_without_the_beta_keeps_the_usual_window():
    """Other betas, or a damaged list of them, negotiate nothing."""
    for body in ({}, {"betas": 3}, {"anthropic_beta": [3, None]}):
        assert resolve("claude-next-9", "context-management-2025-06-27", body=body) == (200_000, "catalog")
    assert resolve("claude-next-9", BETA) == (1_000_000, "negotiated")


def test_configured_window_wins_over_the_beta():
    """``--window`` and a line of one's own are kept."""
    assert resolve("claude-next-9", BETA, window=64_000) == (64_000, "asked for")
    target = get_target("anthropic", "claude-next-9", window=50_000)
    assert resolve("claude-next-9", BETA, target=target) == (50_000, "asked for")
    line = '[[model]]\nmatch = "claude-next*"\nwindow = 90000\n'
    for more, expected in (("", 90_000), ("long_window = 300000\n", 300_000)):
        catalog = parse_catalog(line + more, "holdfast.toml").merge_before(load_shipped_catalog())
        assert resolve("claude-next-9", BETA, catalog=catalog)[0] == expected
