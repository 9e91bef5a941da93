"""What the adapters share beside ``AgentHistory``: errors, keys, parts, and going on when something is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast import Message, Text, get_target, open_store
from holdfast.errors import ConfigError
from holdfast.events import CompactionEnded
from holdfast.integrations.common.agent_history import GivenMessage
from holdfast.integrations.common.options import (
    AgentHistories,
    check_window,
    find_api,
    find_output_limit,
    make_conversation_key,
)
from holdfast.integrations.common.parts import match_kept_parts
from holdfast.integrations.common.provider_errors import is_overflow_class, read_provider_error
from holdfast.messages.parts import Opaque
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.store.location import locate_store
from holdfast.store.memory import MemoryStore

TOO_LONG = "prompt is too long: 60000 tokens > 20000 maximum"


def make_error(**fields):
    """Return an error of a client library that has these fields."""
    error = RuntimeError(TOO_LONG)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("fields", "status", "code", "body"),
    [
        ({}, None, "", b""),
        (
            {"status_code": 400, "code": "context_length_exceeded", "body": {"a": 1}},
            400,
            "context_length_exceeded",
            {"a": 1},
        ),
        ({"code": 400, "details": {"error": {}}}, 400, "", {"error": {}}),
        ({"code": 7, "details": lambda: "a method"}, None, "", b""),
        ({"response": SimpleNamespace(status_code=413)}, 413, "", b""),
        (
            {"response": {"Error": {"Code": "ValidationException"}, "ResponseMetadata": {"HTTPStatusCode": 400}}},
            400,
            "ValidationException",
            b"",
        ),
        ({"status_code": "400", "code": None, "response": None}, None, "", b""),
    ],
)
def test_errors_of_client_libraries_are_read(fields, status, code, body):
    """Status, code and body are found under the names that the libraries give them; the text is always there."""
    report = read_provider_error(make_error(**fields))
    assert (report.status, report.code, report.body, report.message) == (status, code, body, TOO_LONG)
    assert classify_error(report).limit == 20_000


@pytest.mark.parametrize("name", ["ContextOverflowError", "ContextWindowExceededError"])
def test_class_of_a_framework_tells_an_overflow(name):
    """An error of a framework's class for overflows is one whatever its text says; so is one of a class under it."""
    overflow_class = type(name, (ValueError,), {})
    assert is_overflow_class(overflow_class("no"))
    assert is_overflow_class(type("OpenAIContextOverflow", (overflow_class,), {})("no"))
    assert not is_overflow_class(ValueError(name))
    assert not is_overflow_class(ErrorReport(message=name))


@pytest.mark.parametrize("window", [0, -1, "32000", 1.5])
def test_a_window_that_is_none_is_refused_where_it_is_given(window):
    """What is no number of tokens is an error at once, not a warning at the first call."""
    with pytest.raises(ConfigError, match="window"):
        check_window(window)
    assert check_window(None) is None
    assert check_window(32_000) == 32_000


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ([], None),
        ([{}, SimpleNamespace(max_tokens=None)], None),
        ([{"max_completion_tokens": 500}, {"max_tokens": 100}], 500),
        ([{"temperature": 1}, SimpleNamespace(max_tokens=100)], 100),
        ([{"max_tokens": "many"}, {"max_output_tokens": 0}, {"max_new_tokens": 7}], 7),
    ],
)
def test_limit_of_the_answer_is_that_of_the_first_that_states_one(settings, limit):
    """Mappings and objects are asked in order, under every name that the APIs have for it."""
    assert find_output_limit(*settings) == limit


@given(names=st.lists(st.text(), max_size=4), other_names=st.lists(st.text(), max_size=4))
def test_keys_tell_conversations_apart(names, other_names):
    """Two conversations have one key only if all their names are the same, wherever one name ends; any text will do."""
    are_same_keys = make_conversation_key("strands", *names) == make_conversation_key("strands", *other_names)
    assert are_same_keys == (names == other_names)
    assert make_conversation_key("strands", "\ud83d") != make_conversation_key("langchain", "\ud83d")


@given(
    given_letters=st.text("ab", max_size=6),
    kept_places=st.sets(st.integers(0, 5)),
    new_place=st.integers(0, 6),
)
def test_kept_parts_are_matched_in_order(given_letters, kept_places, new_place):
    """Each shown part gets the place of an equal one, places only grow, and a part that was not given has none."""
    given_parts = [Opaque(letter, Raw(b"{}")) for letter in given_letters]
    shown_parts = [part for place, part in enumerate(given_parts) if place in kept_places]
    shown_parts.insert(new_place, Text("a preview"))
    pairs = list(match_kept_parts(given_parts, shown_parts))
    assert [part for part, _ in pairs] == shown_parts
    places = [place for _, place in pairs if place is not None]
    assert places == sorted(set(places))
    assert all(place is None if isinstance(part, Text) else given_parts[place] == part for part, place in pairs)


def test_whatever_goes_wrong_is_said_once_for_each_kind(caplog):
    """The code after the block goes on; each kind of error has one line in the log."""
    histories = AgentHistories(":memory:")
    for error in (ValueError("one"), ValueError("two"), KeyError("three")):
        with histories.keep_agent_running():
            raise error
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == [
        "ValueError: one",
        "KeyError: 'three'",
    ]


def test_recall_without_a_store_is_explained_to_the_model(tmp_path):
    """A store that cannot be opened gives the tool a text, not an error that ends the run."""
    (tmp_path / "store.db").write_text("this is no database, and it is long enough to be looked at" * 100)
    answer = AgentHistories(tmp_path / "store.db").answer_recall("one", {"search": "anything"})
    assert "store.db" in answer


def test_the_usual_store_is_that_of_the_commands(tmp_path, monkeypatch):
    """Without a store, an adapter writes where ``holdfast ls`` looks."""
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "usual.db"))
    histories = AgentHistories()
    history = histories.open("one")
    history.plan([GivenMessage(Message.from_text("user", "Hello."))], get_target("openai-chat", "gpt-4.1"))
    histories._get_store().close()
    assert locate_store().url == str(tmp_path / "usual.db")
    store = open_store(tmp_path / "usual.db")
    assert [session.key for session in store.list_sessions()] == ["one"]
    store.close()


def test_the_api_of_a_model_is_that_of_its_nearest_known_class():
    """A class of the user's own that extends a known one has the API of that."""

    class ChatAnthropic:
        pass

    class Logged(ChatAnthropic):
        pass

    apis = {"ChatAnthropic": "anthropic"}
    assert [find_api(model, apis) for model in (Logged(), ChatAnthropic(), object())] == [
        "anthropic",
        "anthropic",
        "openai-chat",
    ]


def test_a_listener_that_raises_ends_for_itself_alone(caplog):
    """It is called once, for all conversations together, and told in the log; the framework gets all events."""
    told, heard = [], []

    def listen(event):
        heard.append(event)
        raise ValueError("not today")

    histories = AgentHistories(MemoryStore(), listener=listen, tell_framework=told.append)
    for key in ("one", "two"):
        # What a conversation calls with its events.
        histories.open(key)._emit_event(CompactionEnded(key))
    assert [event.session for event in told] == ["one", "two"]
    assert [event.session for event in heard] == ["one"]
    assert [record.message for record in caplog.records] == [
        "the listener raised ValueError: not today; it gets no more events: fix it"
    ]


def test_each_wrong_setting_is_told_once(caplog):
    """Two mistakes in settings are two warnings, each once; of other errors the first of a kind is told."""
    histories = AgentHistories(MemoryStore())
    for error in (ConfigError("one"), ConfigError("two"), ConfigError("one"), OSError("3 bytes"), OSError("4 bytes")):
        histories.warn_once(error)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["one", "two", "3 bytes"]
