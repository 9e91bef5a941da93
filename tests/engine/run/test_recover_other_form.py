"""A refused form of client content: another is tried once, and taken back if the try of this run was in vain."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.errors import UpstreamError
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_FORM, NoteEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedReply, ScriptedUpstream

MODEL = "house-model"
USER, ANSWER = {"role": "user", "content": "go"}, {"role": "assistant", "content": "gone"}
ORPHAN = {"role": "tool", "tool_call_id": "call_9", "content": "a result of no call"}
IN_OWN_FORM = [USER, ORPHAN, USER]
"""What normalization changes, unless a server is left its client's form."""
ODD_NAME = {"role": "user", "content": "go", "name": "ann the first"}
WITH_ODD_NAME = [USER, ANSWER, ODD_NAME]
"""What normalization leaves alone, and a check changes."""


def build_refusal(status, text):
    """Return a refusal in the words of Chat Completions."""
    return ScriptedReply((json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode(),), status)


WRONG_FORM = build_refusal(400, "messages: the conversation is not valid")
WRONG_KEY = build_refusal(401, "invalid api key")


class Scenario:
    """One session that sends a client's bodies as the proxy does, through one engine after the other."""

    def __init__(self, *, keeps_client_content):
        target = get_target("openai-chat", MODEL)
        dialect = replace(target.dialect, keeps_client_content=keeps_client_content)
        self.target = replace(target, dialect=dialect)
        self.store, self.events = MemoryStore(), []

    def run(self, messages, *replies):
        """Send ``messages`` to a server that gives ``replies``; return the messages that it got, of each request."""
        upstream = ScriptedUpstream(replies)

        async def send():
            opening = Engine.open(self.store, upstream=upstream, target=self.target, listen=self.events.append)
            async with opening as engine:
                session = await engine.session(SAMPLE_KEY)
                session.resources.check_mode = "changed"
                async with session.run({"model": MODEL, "messages": messages}) as run:
                    async for _ in run:
                        pass

        try:
            run_on_fake_clock(send)
        finally:
            self.sent = [json.loads(sent.body)["messages"] for sent in upstream.sent]
        return self.sent

    @property
    def form(self):
        """What the session has learned: whether the strict form is required, and whether a check is."""
        limits = ConversationState.from_entries(self.store.read_path(SAMPLE_KEY)).usage.learned_limits
        return limits.requires_strict_form, limits.requires_check

    @property
    def form_notes(self):
        """The notes about the form, as the log has them."""
        bodies = [entry.body for entry in self.store.read_path(SAMPLE_KEY)]
        return [body.data for body in bodies if isinstance(body, NoteEntry) and body.reason == NOTE_FORM]


every_form = pytest.mark.parametrize(
    ("keeps_client_content", "messages", "form"),
    [(True, IN_OWN_FORM, (True, False)), (False, WITH_ODD_NAME, (False, True))],
    ids=["strict", "checked"],
)


@every_form
def test_form_that_brought_an_answer_stays_whatever_fails_later(keeps_client_content, messages, form):
    """A wrong key, long after, says nothing about the form; later requests do not try the refused form again."""
    scenario = Scenario(keeps_client_content=keeps_client_content)
    first, second = scenario.run(messages, WRONG_FORM, "gone")
    assert (first, scenario.form) == (messages, form)
    assert messages[-2:] != second[-2:]
    with pytest.raises(UpstreamError):
        scenario.run([*messages, ANSWER, USER], WRONG_KEY)
    assert scenario.form == form
    (third,) = scenario.run([*messages, ANSWER, USER], "gone again")
    assert third == [*second, ANSWER, USER]
    assert len(scenario.form_notes) == 1


@every_form
@pytest.mark.parametrize("last_reply", [WRONG_FORM, WRONG_KEY], ids=["form", "key"])
def test_form_that_brought_no_answer_is_taken_back(keeps_client_content, messages, form, last_reply):
    """The refusal may have been about something else, so the next run sends what the client wrote."""
    scenario = Scenario(keeps_client_content=keeps_client_content)
    with pytest.raises(UpstreamError):
        scenario.run(messages, WRONG_FORM, last_reply)
    assert len(scenario.sent) == 2
    assert (scenario.form, len(scenario.form_notes)) == ((False, False), 2)
    assert form != scenario.form
    assert scenario.run(messages, "gone") == [messages]


def test_form_tried_in_vain_leaves_what_was_learned_before():
    """A run that tries the strict form takes back that form alone, and not the check that an earlier one learned."""
    scenario = Scenario(keeps_client_content=False)
    scenario.run(WITH_ODD_NAME, WRONG_FORM, "gone")
    unknown_dialect = replace(scenario.target.dialect, keeps_client_content=True)
    scenario.target = replace(scenario.target, dialect=unknown_dialect)
    with pytest.raises(UpstreamError):
        scenario.run([*WITH_ODD_NAME, ANSWER, *IN_OWN_FORM], WRONG_FORM, WRONG_KEY)
    assert scenario.form_notes[1:] == [{"mends": True, "judges": True}, {"mends": False, "judges": True}]
    assert scenario.form == (False, True)


def test_strict_form_that_is_refused_later_is_not_sent_twice():
    """No check is made at a server that wants the strict form, so switching to checks would send the same again."""
    scenario = Scenario(keeps_client_content=True)
    scenario.run(IN_OWN_FORM, WRONG_FORM, "gone")
    with pytest.raises(UpstreamError):
        scenario.run(WITH_ODD_NAME, WRONG_FORM)
    assert len(scenario.sent) == 1
    assert scenario.form == (True, False)
