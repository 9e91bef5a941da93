"""A coding session through the real proxy at each server past its window: nothing is refused for its form.

The client is written for its server and sends the reasoning back, or drops it, or comes with a history that other
servers, OpenAI and Claude have written. ``providers_past_window.py`` has the session, and prints its figures.
"""

from __future__ import annotations

import anyio
import pytest
from providers_past_window import CLIENTS_BY_SERVER, run_session

from holdfast.testing.provider.dialects.registry import SERVER_NAMES

WINDOWS = 2.5
"""Windows that the history of each client fills."""
REASONING_SERVERS = ("mistral", "deepseek", "kimi")
"""Servers of which each client is tried in the quick suite: their rules about reasoning are the strictest."""


def run(server, kind, **settings):
    """Run a session and return its report."""

    async def run_server_session():
        return await run_session(server, kind, windows=WINDOWS, **settings)

    return anyio.run(run_server_session)


def list_params(*, quick):
    """Return all servers for ``parametrize``; those outside of ``quick`` are marked ``long``."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in SERVER_NAMES]


def assert_session_went_well(report):
    """valid-request, nothing-lost: no refusal but of the size, none at the client, and no words or reasoning lost."""
    assert report.failures == []
    assert report.refusals == []
    assert report.windows >= WINDOWS
    assert report.compactions >= 1


def test_there_is_a_client_for_each_server():
    """No server that the strict provider knows is left out."""
    assert tuple(CLIENTS_BY_SERVER) == SERVER_NAMES


@pytest.mark.parametrize("server", list_params(quick=(*REASONING_SERVERS, "bedrock", "sglang")))
def test_proxy_keeps_a_session_going_past_the_window_of_each_server(server):
    """The newest words of the user and the reasoning of the turn reach the server, and the window never overflows."""
    report = run(server, "keeps")
    assert_session_went_well(report)
    assert report.overflows == 0


@pytest.mark.parametrize("server", list_params(quick=REASONING_SERVERS[1:]))
def test_proxy_sends_reasoning_that_a_client_drops(server):
    """A client without a memory for reasoning is not refused where the server wants it back: the log has it."""
    assert_session_went_well(run(server, "drops"))


@pytest.mark.parametrize("server", list_params(quick=("mistral", "groq")))
def test_proxy_takes_a_history_of_other_servers_to_each_server(server):
    """Reasoning in fields of other servers, and what libraries dump beside it, is not refused by the next server."""
    assert_session_went_well(run(server, "switches"))


@pytest.mark.parametrize("server", list_params(quick=("ollama", "glm")))
def test_proxy_learns_a_window_that_nobody_stated(server):
    """A local server is asked for its window; another one tells it in a refusal that never reaches the client."""
    report = run(server, "keeps", states_window=False)
    assert_session_went_well(report)
