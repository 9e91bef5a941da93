"""Real clients, each a long conversation in a small window, with Holdfast before a strict provider."""

from __future__ import annotations

import os

import pytest
from conversation_driver import CLIENTS, SCENARIOS, converse
from conversation_verdict import judge

TURNS = int(os.environ.get("HOLDFAST_CLIENTS_TURNS", "40"))
HOURS = 2

pytestmark = [pytest.mark.clients, pytest.mark.timeout(HOURS * 3_600)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_client_conversation_outgrows_its_window_without_errors(client, scenario, clients_folder, tmp_path):
    """No error reaches the client, its newest text is always upstream, and one conversation is one session."""
    verdict = judge(converse(client, scenario, tmp_path / "run", clients_folder, TURNS, is_with_holdfast=True))
    assert (verdict.turns, verdict.errors, verdict.lost, verdict.wrong) == (TURNS, 0, 0, ()), verdict
