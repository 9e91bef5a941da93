"""``converse`` and ``judge`` with a client that needs no installation: which faults they report."""

from __future__ import annotations

import subprocess

import example_counts
import httpx2
import pytest
from command_line_clients import Answer
from conversation_driver import Client, Scenario, converse
from conversation_verdict import judge
from msgspec.structs import replace

from holdfast.testing.provider.calls import RefusalReply

pytestmark = pytest.mark.long
"""Each test runs a whole conversation against a proxy process."""

TURNS, WINDOW = 8, 16_000
TOOL = {"name": "run", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
WORDINGS = ("native", "llama.cpp", "openai-tpm")


class PlainConversation:
    """A client of the Messages API that sends its whole history and stops at the first error."""

    def __init__(self, place, forgets: bool = False) -> None:
        self._web = httpx2.Client(base_url=place.url, timeout=30)
        self._messages, self._forgets = [], forgets
        self.close = self._web.close

    def say(self, turn) -> Answer:
        """Return the answer, after running the tool's command."""
        self._messages.append({"role": "user", "content": "hello" if self._forgets else turn.text})
        while True:
            about = {"model": "claude-sonnet-4-5", "max_tokens": 512, "tools": [TOOL], "messages": self._messages}
            reply = self._web.post("/v1/messages", json=about, headers={"anthropic-version": "2023-06-01"})
            if reply.status_code != 200:
                return Answer(error=reply.text)
            content = reply.json()["content"]
            self._messages.append({"role": "assistant", "content": content})
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return Answer(content[-1]["text"])
            output = subprocess.run(turn.command, shell=True, capture_output=True, text=True, check=True).stdout
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": output} for call in calls]
            self._messages.append({"role": "user", "content": results})


CLIENT = Client("plain", PlainConversation, WINDOW, "run")


def run_and_judge(client, scenario, folder, *, is_with_holdfast):
    """Return the verdict on a run of a client that needs no installation."""
    return judge(converse(client, scenario, folder / "run", folder, TURNS, is_with_holdfast=is_with_holdfast))


@pytest.mark.parametrize("overflow", example_counts.mark_rest_long(WORDINGS, keep=1))
def test_converse_reports_no_error_with_holdfast(overflow, tmp_path):
    """With ``holdfast serve`` as a process and a window unknown to both, the client never sees an overflow."""
    verdict = run_and_judge(CLIENT, Scenario("any", "", overflow), tmp_path, is_with_holdfast=True)
    assert (verdict.turns, verdict.errors, verdict.lost, verdict.wrong) == (TURNS, 0, 0, ()), verdict
    assert verdict.past > 0
    assert verdict.refused > 0, "the window was never reached"


def test_converse_counts_errors_without_holdfast(tmp_path):
    """A run that ends at the window has errors, and it ends early."""
    verdict = run_and_judge(CLIENT, Scenario("any", "", "llama.cpp"), tmp_path, is_with_holdfast=False)
    assert verdict.errors == 3
    assert "exceeds the available context size" in verdict.first_error


def test_converse_has_no_refusals_when_the_window_is_known(tmp_path):
    """Holdfast need not learn a known window from refusals."""
    verdict = run_and_judge(CLIENT, Scenario("known", "", is_known=True), tmp_path, is_with_holdfast=True)
    assert (verdict.errors, verdict.refused, verdict.sessions, verdict.wrong) == (0, 0, 1, ()), verdict


def test_judge_counts_words_missing_upstream_as_lost(tmp_path):
    """A client that drops its user's text is detected, however well it is answered."""
    client = Client("forgetful", lambda place: PlainConversation(place, forgets=True), WINDOW, "run")
    verdict = run_and_judge(client, Scenario("any", ""), tmp_path, is_with_holdfast=False)
    assert verdict.lost == TURNS


def test_judge_reports_what_no_run_may_have(tmp_path):
    """A refusal that is no overflow, a second session and a traceback are wrong."""
    run = converse(CLIENT, Scenario("any", ""), tmp_path / "run", tmp_path, 1, is_with_holdfast=False)
    turn_record = run.turns[0]
    refused = replace(
        turn_record.requests[0], reply=RefusalReply(400, "invalid_request_error", "tools.0: an odd shape")
    )
    route = replace(run.route, sessions=2, stderr="Traceback (most recent call last):")
    wrong = judge(
        replace(run, is_with_holdfast=True, route=route, turns=(replace(turn_record, requests=(refused,)),))
    ).wrong
    assert wrong == ("turn 1: 400 tools.0: an odd shape", "2 sessions in the store", "Holdfast showed a traceback")
