"""A refusal that names a field is acted on once, for that field, and remembered for that server."""

from __future__ import annotations

import json

import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.server_lessons import FIELD_LESSON_HOURS, MAX_SERVERS, ServerLessons
from holdfast.errors import UpstreamError
from holdfast.planning.pipeline import Policy
from holdfast.recovery.machine import MAX_FIELD_CHANGES
from holdfast.state.entries import NOTE_FIELDS, NoteEntry
from holdfast.state.field_lessons import MAX_FIELD_LESSONS, FieldLesson, add_field_lessons
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.faults.field_faults import FieldFault
from holdfast.testing.upstream import ProviderUpstream

MODEL = "house-model"
USER, ANSWER = {"role": "user", "content": "go"}, {"role": "assistant", "content": "x", "reasoning_content": "hm"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
WITH_CALL = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a"},
]


class Server(ProviderUpstream):
    """The strict provider at an address."""

    def __init__(self, *faults, base_url="http://house/v1"):
        super().__init__(Provider(ProviderSettings(tokenizer="words", field_faults=faults)))
        self.base_url = base_url

    @property
    def bodies(self):
        """The bodies that were sent, decoded."""
        return [json.loads(sent.body) for sent in self.sent]


class Scenario:
    """A store with engines on it, one after the other, and what they told."""

    def __init__(self, server, api="openai-chat", model=MODEL, **options):
        self.server, self.api, self.model, self.options = server, api, model, options
        self.store, self.events = MemoryStore(), []
        self.now = 1_000_000

    def run(self, *bodies, keys=(SAMPLE_KEY,)):
        """Send ``bodies`` in each of the sessions ``keys``, through one engine."""

        async def send_all():
            async with Engine.open(
                self.store,
                upstream=self.server,
                target=get_target(self.api, self.model),
                listen=self.events.append,
                **self.options,
            ) as engine:
                for key in keys:
                    session = await engine.session(key)
                    session.resources.clock = lambda: self.now
                    for body in bodies:
                        async with session.run({"model": self.model, **body}) as run:
                            async for _ in run:
                                pass

        run_on_fake_clock(send_all)

    @property
    def notices(self):
        """The texts of the notices about fields."""
        found = [event for event in self.events if isinstance(event, events.NoticeGiven) and event.rule == "field"]
        return [event.why for event in found]


REFUSING = ["openai", "groq", "cerebras", "mistral", "openrouter", "anthropic", "gemini"]


@pytest.mark.parametrize("words", REFUSING)
def test_refused_field_of_messages_is_left_out_in_every_wording(words):
    """One refusal, one request without the field in all messages of the role, one notice."""
    server = Server(FieldFault("refuses", "messages.*.reasoning_content", words, "assistant"))
    scenario = Scenario(server)
    scenario.run({"messages": [USER, ANSWER, USER, ANSWER, USER]})
    first, second = server.bodies
    assert first["messages"][1] == ANSWER
    plain = {"role": "assistant", "content": "x"}
    assert second == {**first, "messages": [USER, plain, USER, plain, USER]}
    (notice,) = scenario.notices
    assert "`messages[].reasoning_content` is left out" in notice
    assert f"{FIELD_LESSON_HOURS} hours" in notice


@pytest.mark.parametrize("words", [*REFUSING, "azure", "bedrock", "xai"])
def test_refused_top_level_field_is_left_out_in_every_wording(words):
    """The rest of the body keeps its bytes."""
    server = Server(FieldFault("refuses", "presence_penalty", words))
    Scenario(server).run({"presence_penalty": 0, "messages": [USER]})
    first, second = (sent.body for sent in server.sent)
    assert second == first.replace(b'"presence_penalty":0,', b"")


@pytest.mark.parametrize("words", ["kimi", "deepseek", "openai", "anthropic"])
def test_missing_reasoning_is_filled_where_it_is_wanted(words):
    """A session that lost its reasoning goes on, in the same request and in all later ones."""
    server = Server(FieldFault("wants", "messages.*.reasoning_content", words, "assistant", beside="tool_calls"))
    scenario = Scenario(server)
    scenario.run({"messages": WITH_CALL, "tools": [TOOL]})
    scenario.run({"messages": [*WITH_CALL, ANSWER, USER], "tools": [TOOL]})
    assert len(server.sent) == 3
    for body in server.bodies[1:]:
        assert body["messages"][1]["reasoning_content"] == " "
        assert body["messages"][1]["tool_calls"] == [CALL]


OPTIONS = ["store", "metadata", "seed", "user", *[f"option_{number}" for number in range(40)]]


@pytest.mark.parametrize("count", [4, 7, 12, MAX_FIELD_CHANGES])
def test_several_fields_are_left_out_one_after_the_other(count):
    """A server names one wrong field at a time, and each is acted on; the next request needs no refusal."""
    names = OPTIONS[:count]
    server = Server(*[FieldFault("refuses", name) for name in names])
    scenario = Scenario(server)
    body = {**dict.fromkeys(names), "messages": [USER]}
    scenario.run(body)
    assert len(server.sent) == 1 + count
    assert server.bodies[-1].keys() == {"model", "messages"}
    assert len(scenario.notices) == count
    scenario.run({**body, "messages": [USER, ANSWER, USER]})
    assert len(server.sent) == 2 + count


def test_fields_beyond_the_bound_are_left_out_by_the_next_request():
    """A request gives up at the bound, but what it learned stays, so that the next one gets to the end."""
    names = OPTIONS[: MAX_FIELD_CHANGES + 5]
    server = Server(*[FieldFault("refuses", name) for name in names])
    scenario = Scenario(server)
    body = {**dict.fromkeys(names), "messages": [USER]}
    with pytest.raises(UpstreamError):
        scenario.run(body)
    assert len(server.sent) == 1 + MAX_FIELD_CHANGES
    scenario.run(body)
    assert len(server.sent) == 1 + len(names) + 1
    assert server.bodies[-1].keys() == {"model", "messages"}


def test_lesson_holds_after_a_restart_and_in_a_fork():
    """What was learned is in the log: a new process and an edited past send the field no more."""
    server = Server(FieldFault("refuses", "store"))
    scenario = Scenario(server)
    scenario.run({"store": False, "messages": [USER]})
    scenario.run({"store": False, "messages": [{"role": "user", "content": "something else"}]})
    assert ["store" in body for body in server.bodies] == [True, False, False]
    notes = [entry.body for entry in scenario.store.read_path(SAMPLE_KEY) if isinstance(entry.body, NoteEntry)]
    assert NOTE_FIELDS in {note.reason for note in notes}


def test_lesson_holds_for_other_sessions_of_the_process_and_is_told_there():
    """Another session needs no refusal of its own; its log gets the lesson, and its user is told."""
    server = Server(FieldFault("refuses", "store"))
    scenario = Scenario(server)
    scenario.run({"store": False, "messages": [USER]}, keys=(SAMPLE_KEY, "other"))
    assert ["store" in body for body in server.bodies] == [True, False, False]
    assert len(scenario.notices) == 2
    scenario.run({"store": False, "messages": [USER]}, keys=("other",))
    assert "store" not in server.bodies[-1]


def test_lesson_holds_for_its_server_and_model_only():
    """The same session at another address, or with another model, sends the field again."""
    scenario = Scenario(Server(FieldFault("refuses", "store")))
    scenario.run({"store": False, "messages": [USER]})
    scenario.server = Server(base_url="http://other/v1")
    scenario.run({"store": False, "messages": [USER, ANSWER, USER]})
    assert "store" in scenario.server.bodies[-1]
    scenario.server = Server()
    scenario.model = "another-model"
    scenario.run({"store": False, "messages": [USER, ANSWER, USER, ANSWER, USER]})
    assert "store" in scenario.server.bodies[-1]


def test_lesson_is_forgotten_after_a_while():
    """A server that takes the field by then gets it again; one that does not teaches it once more."""
    scenario = Scenario(Server(FieldFault("refuses", "store")))
    body = {"store": False, "messages": [USER]}
    scenario.run(body)
    scenario.now += FIELD_LESSON_HOURS * 3_600_000
    scenario.run(body)
    assert ["store" in sent for sent in scenario.server.bodies] == [True, False, True, False]
    scenario.now += FIELD_LESSON_HOURS * 3_600_000
    scenario.server = Server()
    scenario.run(body)
    assert ["store" in sent for sent in scenario.server.bodies] == [True]


def test_change_that_did_not_help_is_taken_back():
    """If the server names the field again, the log does not leave it out for ever; the other changes stay."""
    refuses_store = FieldFault("refuses", "store")
    server = Server(refuses_store, FieldFault("refuses", "seed"), FieldFault("wants", "store"))
    scenario = Scenario(server)
    with pytest.raises(UpstreamError):
        scenario.run({"store": False, "seed": 1, "messages": [USER]})
    assert len(server.sent) == 3
    assert "`store`" in scenario.notices[-1]
    assert "taken back" in scenario.notices[-1]
    scenario.server = Server()
    scenario.run({"store": False, "seed": 1, "messages": [USER]})
    assert "store" in scenario.server.bodies[-1]
    assert "seed" not in scenario.server.bodies[-1]


def test_lessons_stay_if_the_request_fails_for_another_reason():
    """A refusal of something else proves nothing about the fields that were left out before."""
    server = Server(FieldFault("refuses", "store"), FieldFault("refuses", "messages.*.role"))
    scenario = Scenario(server)
    with pytest.raises(UpstreamError):
        scenario.run({"store": False, "messages": [USER]})
    assert len(scenario.notices) == 1
    scenario.server = Server()
    scenario.run({"store": False, "messages": [USER]})
    assert "store" not in scenario.server.bodies[-1]


@pytest.mark.parametrize("field", ["model", "messages", "tools", "messages.*.content", "messages.*.role"])
def test_needed_fields_are_never_left_out(field):
    """A server that refuses what the client needs gets no second request, and the client the refusal."""
    server = Server(FieldFault("refuses", field))
    with pytest.raises(UpstreamError):
        Scenario(server).run({"messages": [USER], "tools": [TOOL]})
    assert len(server.sent) == 1


@pytest.mark.parametrize("words", ["anthropic", "bedrock"])
def test_refused_beta_is_not_asked_for_again(words):
    """A beta goes from the header, and then what it was for from the body, if the server refuses that as well."""
    server = Server(
        FieldFault("refuses_beta", "compact-2026-01-12", words),
        FieldFault("refuses", "context_management", "anthropic"),
    )
    scenario = Scenario(server, "anthropic", "claude-opus-4-8")
    edits = {"edits": [{"type": "compact_20260112"}]}
    scenario.run({"max_tokens": 100, "messages": [USER], "context_management": edits})
    assert ["anthropic-beta" in sent.headers for sent in server.sent] == [True, False, False]
    assert ["context_management" in body for body in server.bodies] == [True, True, False]
    assert len(scenario.notices) == 2


def test_observed_requests_are_never_changed():
    """A request that is only observed goes out as it came, also after a refusal."""
    server = Server(FieldFault("refuses", "store"))
    scenario = Scenario(server, policy=Policy().with_settings(recovery={"enabled": False}))
    with pytest.raises(UpstreamError):
        scenario.run({"store": False, "messages": [USER]})
    assert len(server.sent) == 1


def test_server_lessons_are_bounded_and_know_no_server_without_a_name():
    """The server that was used longest ago is forgotten first."""
    memory, lesson = ServerLessons(), FieldLesson("drop", ("store",))
    memory.add("", "a", "m", [lesson])
    assert memory.get("", "a", "m") == ()
    for number in range(MAX_SERVERS):
        memory.add(f"s{number}", "a", "m", [lesson])
    assert memory.get("s0", "a", "m") == (lesson,)
    memory.add("one more", "a", "m", [lesson])
    assert (memory.get("s0", "a", "m"), memory.get("s1", "a", "m")) == ((lesson,), ())


def test_add_field_lessons_keeps_the_newest_about_each_field():
    """A newer lesson takes the place of an older one, and only so many are kept."""
    old, new = FieldLesson("cap", ("n",), limit=9), FieldLesson("cap", ("n",), limit=5)
    assert add_field_lessons((old,), (new,)) == (new,)
    many = [FieldLesson("drop", (f"f{number}",)) for number in range(99)]
    assert add_field_lessons((), many) == tuple(many[-MAX_FIELD_LESSONS:])
