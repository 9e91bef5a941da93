"""The drivers themselves, with a client that needs no installation: what they find fault with, and what not."""

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
"""Each test has a client talk through forty turns."""

TURNS, WINDOW = 8, 16_000
TOOL = {"name": "run", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
WORDINGS = ("native", "llama.cpp", "openai-tpm")


class Plain:
    """A client of Messages that sends all it has, and gives up at the first error."""

    def __init__(self, place, forgets: bool = False) -> None:
        self._web = httpx2.Client(base_url=place.url, timeout=30)
        self._messages, self._forgets = [], forgets
        self.close = self._web.close

    def say(self, turn) -> Answer:
        """Return the answer, with the tool's output between."""
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


CLIENT = Client("plain", Plain, WINDOW, "run")


def ran(client, scenario, folder, *, is_held):
    """Return the verdict on a run of a client that is installed nowhere."""
    return judge(converse(client, scenario, folder / "run", folder, TURNS, is_held=is_held))


@pytest.mark.parametrize("overflow", example_counts.spare(WORDINGS, keep=1))
def test_a_client_that_gives_up_does_not_with_holdfast(overflow, tmp_path):
    """``holdfast serve`` as a process, its window unknown to everybody: the client never hears of it."""
    verdict = ran(CLIENT, Scenario("any", "", overflow), tmp_path, is_held=True)
    assert (verdict.turns, verdict.errors, verdict.lost, verdict.wrong) == (TURNS, 0, 0, ()), verdict
    assert verdict.past > 0
    assert verdict.refused > 0, "the window was never reached"


def test_without_holdfast_the_error_is_counted(tmp_path):
    """A run that ends at the window has errors, and it ends early."""
    verdict = ran(CLIENT, Scenario("any", "", "llama.cpp"), tmp_path, is_held=False)
    assert verdict.errors == 3
    assert "exceeds the available context size" in verdict.first_error


def test_a_known_window_is_not_overflowed(tmp_path):
    """What Holdfast knows of the window, it need not learn from refusals."""
    verdict = ran(CLIENT, Scenario("known", "", is_known=True), tmp_path, is_held=True)
    assert (verdict.errors, verdict.refused, verdict.sessions, verdict.wrong) == (0, 0, 1, ()), verdict


def test_words_that_were_not_before_the_model_are_counted_lost(tmp_path):
    """A client that drops what its user said is found out, however well it is answered."""
    client = Client("forgetful", lambda place: Plain(place, forgets=True), WINDOW, "run")
    verdict = ran(client, Scenario("any", ""), tmp_path, is_held=False)
    assert verdict.lost == TURNS


def test_what_no_run_may_have_is_told(tmp_path):
    """A refusal that is no overflow, a second session and a traceback are wrong."""
    run = converse(CLIENT, Scenario("any", ""), tmp_path / "run", tmp_path, 1, is_held=False)
    said = run.turns[0]
    refused = replace(said.requests[0], reply=RefusalReply(400, "invalid_request_error", "tools.0: an odd shape"))
    held = replace(run.held, sessions=2, told="Traceback (most recent call last):")
    wrong = judge(replace(run, is_held=True, held=held, turns=(replace(said, requests=(refused,)),))).wrong
    assert wrong == ("turn 1: 400 tools.0: an odd shape", "2 sessions in the store", "Holdfast showed a traceback")
