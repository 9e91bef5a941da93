"""The words of conversations on spans: only if asked for, in the form of the conventions, masked, cut, each once."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')")

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import wild_history_strategy
from jsonschema import Draft202012Validator
from long_conversation import build_long_conversation
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from telemetry_recording import Recording

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.store.memory import MemoryStore
from holdfast.telemetry.content import (
    MAX_ATTRIBUTE_CHARS,
    MAX_TEXT_CHARS,
    RecordedContent,
    describe_input,
    describe_output,
)
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.faults.faults import Fault
from holdfast.testing.upstream import ProviderUpstream

MODEL = "claude-opus-5-5"
SPAN = f"chat {MODEL}"
TARGET = get_target("anthropic", MODEL, window=32_000)
INPUT, OUTPUT, INSTRUCTIONS = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
CUT, OMITTED = "holdfast.content.input.cut_characters", "holdfast.content.input.omitted_parts"
REPEATED = "holdfast.content.input.repeated_messages"
SECRET = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"
SUMMARY = (
    "\n".join(f"## {heading}\n- kelp on the rock, note 39, keep it all\n" for heading in SUMMARY_HEADINGS)
    + "word " * 200
)


def make_part_schema(kind, **fields):
    """Return the schema of a part of ``kind`` with required string ``fields`` beside it."""
    properties = {"type": {"const": kind}, **fields}
    return {"type": "object", "properties": properties, "required": list(properties)}


STRING = {"type": "string"}
PART_SCHEMAS = [
    make_part_schema("text", content=STRING),
    make_part_schema("reasoning", content=STRING),
    make_part_schema("tool_call", id=STRING, name=STRING, arguments={}),
    make_part_schema("tool_call_response", id=STRING, response={}),
    make_part_schema("uri", modality=STRING, uri=STRING),
    make_part_schema("file", modality=STRING, file_id=STRING),
]
KNOWN_KINDS = [schema["properties"]["type"]["const"] for schema in PART_SCHEMAS]
GENERIC_PART = {
    "type": "object",
    "properties": {"type": {"type": "string", "not": {"enum": [*KNOWN_KINDS, "blob"]}}},
    "required": ["type"],
}
# What these parts may be by gen-ai-input-messages.json and gen-ai-output-messages.json of
# github.com/open-telemetry/semantic-conventions-genai (Apache-2.0), folder model/gen-ai. There a part of any other kind
# is allowed with any fields; here only where none of the known kinds has a schema of its own, which is stricter.
MESSAGES_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "parts": {"type": "array", "items": {"anyOf": [*PART_SCHEMAS, GENERIC_PART]}},
            "finish_reason": STRING,
        },
        "required": ["role", "parts"],
    },
}
VALIDATOR = Draft202012Validator(MESSAGES_SCHEMA)


def run_session(recording, upstream, work, **options):
    """Do ``work`` with a session of an engine that records into ``recording``; return the result."""

    async def run_scenario():
        fields = {"max_tokens": 500, "system": "You grow kelp."}
        defaults = {"target": TARGET, "fields": fields}
        async with Engine.open(MemoryStore(), upstream=upstream, **defaults | options) as engine:
            engine.resources.telemetry = recording.telemetry
            return await work(await engine.session("kelp"))

    return run_on_fake_clock(run_scenario)


def make_upstream(*answers, window=32_000, faults=()):
    """Return the strict provider with scripted answers."""
    return ProviderUpstream(Provider(ProviderSettings(window=window), answers), faults)


def read_texts(attribute):
    """Return all texts in the messages of an attribute, in their order."""
    texts = []
    for message in json.loads(attribute):
        texts += [str(part.get("content", part.get("response"))) for part in message["parts"]]
    return texts


def describe_messages(*messages):
    """Return the attributes of a first request with ``messages``."""
    return describe_input([build_sized_message(message) for message in messages], {}, RecordedContent())[0]


async def ask_three_times(session):
    """Ask three questions, one after another."""
    for question in ("one?", "two?", "three?"):
        await session.ask(question)


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_nothing_is_recorded_unless_asked_for(recording):
    """Without the switch no span has an attribute of content."""
    run_session(recording, make_upstream(), ask_three_times)
    names = {name for span in recording.spans for name in span.attributes}
    assert not {INPUT, OUTPUT, INSTRUCTIONS} & names
    assert not [name for name in names if name.startswith("holdfast.content")]


def test_each_message_is_recorded_once():
    """A span has what its request says beyond the request before, the answer, and how much is on earlier spans; the
    instructions are on the first span alone. So the cost of a span goes with what is new in it.
    """
    recording = Recording(records_content=True)
    upstream = make_upstream(ScriptedAnswer("uno"), ScriptedAnswer("dos"), ScriptedAnswer("tres"))
    run_session(recording, upstream, ask_three_times)
    first, second, third = recording.find_spans(SPAN)
    assert read_texts(first.attributes[INPUT]) == ["one?"]
    assert json.loads(first.attributes[INSTRUCTIONS]) == [{"type": "text", "content": "You grow kelp."}]
    assert read_texts(second.attributes[INPUT]) == ["uno", "two?"]
    assert read_texts(third.attributes[INPUT]) == ["dos", "three?"]
    assert [span.attributes.get(REPEATED, 0) for span in (first, second, third)] == [0, 1, 3]
    assert INSTRUCTIONS not in second.attributes.keys() | third.attributes.keys()
    assert read_texts(third.attributes[OUTPUT]) == ["tres"]
    assert json.loads(third.attributes[OUTPUT])[0]["finish_reason"] == "end_turn"


def test_request_that_is_retried_keeps_its_words():
    """A second attempt is the same request, and its span has the same words as that of one attempt."""
    recording = Recording(records_content=True)
    run_session(recording, make_upstream(faults=[Fault("529")]), lambda session: session.ask("one?"))
    span = recording.find_span(SPAN)
    assert span.attributes["holdfast.attempts"] == 2
    assert read_texts(span.attributes[INPUT]) == ["one?"]
    assert REPEATED not in span.attributes


def test_summary_is_recorded_where_it_is_written_and_where_it_is_shown():
    """After a compaction the request shows its summary, which is new there; the call for it has it as its answer."""
    recording = Recording(records_content=True)

    async def ask_after_long_conversation(session):
        await session.append(*build_long_conversation())
        await session.ask("And now?")

    upstream = make_upstream(ScriptedAnswer(SUMMARY), ScriptedAnswer("yes"))
    run_session(recording, upstream, ask_after_long_conversation, api="anthropic", summary_model="claude-haiku-4-5")
    assert "note 39" in recording.find_span("chat claude-haiku-4-5").attributes[OUTPUT]
    shown = read_texts(recording.find_span(SPAN).attributes[INPUT])
    assert any("note 39" in text for text in shown)
    assert shown[-1] == "And now?"


def test_span_that_is_not_recorded_leaves_its_words_to_the_next():
    """What a sampler drops costs no work, and does not count as recorded."""
    recording = Recording(records_content=True, sampler=ParentBased(ALWAYS_OFF))
    runtimes = []

    async def ask(session):
        await session.ask("one?")
        runtimes.append(session._runtime)

    run_session(recording, make_upstream(), ask)
    assert recording.spans == ()
    assert runtimes[0].recorded_content is None


# -- the form ----------------------------------------------------------------------------------------------------------


@given(wild_history_strategy())
def test_content_has_the_form_of_the_conventions(messages):
    """Whatever parts messages have, in any order, input and output are JSON of the published form."""
    inputs = json.loads(describe_messages(*messages)[INPUT])
    VALIDATOR.validate(inputs)
    assert [message["role"] for message in inputs] == [message.role for message in messages]
    for message in messages:
        VALIDATOR.validate(json.loads(describe_output(message, "end_turn")[OUTPUT]))


def test_parts_are_readable():
    """Arguments of a call are JSON, a result has the text that the model saw, an image its address or its size."""
    call = ToolCall("call_1", "read", '{"path": "a.py"}')
    result = ToolResult("call_1", "read", (Text("one"), Media("image", "image/png", 9, source="AAAAAAAAAAAA")))
    images = (
        Media("image", "image/png", 9, source="AAAAAAAAAAAA"),
        Media("image", "image/png", source="https://kelp.example/a.png"),
    )
    attributes = describe_messages(Message("assistant", (call,)), Message("tool", (result,)), Message("user", images))
    assert [message["parts"] for message in json.loads(attributes[INPUT])] == [
        [{"type": "tool_call", "id": "call_1", "name": "read", "arguments": {"path": "a.py"}}],
        [{"type": "tool_call_response", "id": "call_1", "response": "one\n[Attached image/png]"}],
        [
            {"type": "holdfast.media", "modality": "image", "mime_type": "image/png", "byte_size": 9},
            {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "https://kelp.example/a.png"},
        ],
    ]


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"system": "a"}, ["a"]),
        ({"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ["a", "b"]),
        ({"systemInstruction": {"parts": [{"text": "a"}]}}, ["a"]),
        ({"instructions": "a"}, ["a"]),
        ({"system": {"odd": 1}}, []),
    ],
)
def test_instructions_of_every_api_are_read(fields, texts):
    """The system prompt is found in the field that each API has for it."""
    attributes, _ = describe_input((), fields, RecordedContent())
    assert [part["content"] for part in json.loads(attributes[INSTRUCTIONS])] == texts


# -- sizes and secrets -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3 * MAX_TEXT_CHARS), max_size=40), st.integers(1, 5))
def test_content_is_cut_and_says_so(lengths, parts_in_message):
    """No attribute is longer than its limit; what is missing is counted in characters and parts, and the newest parts
    are the ones that stay.
    """
    texts = [Text(f"{number}:".ljust(length, "k")) for number, length in enumerate(lengths)]
    messages = [
        Message("user", tuple(texts[start : start + parts_in_message]))
        for start in range(0, len(texts), parts_in_message)
    ]
    attributes = describe_messages(*messages)
    shown = read_texts(attributes[INPUT])
    assert sum(map(len, shown)) <= MAX_ATTRIBUTE_CHARS
    assert len(shown) + attributes.get(OMITTED, 0) == len(texts)
    for text, shown_text in zip(texts[len(texts) - len(shown) :], shown, strict=True):
        cut = max(0, len(text.text) - MAX_TEXT_CHARS)
        assert shown_text == text.text[:MAX_TEXT_CHARS] + (f"… [{cut:,} characters cut]" if cut else "")
    assert (CUT in attributes) == any(len(text.text) > MAX_TEXT_CHARS for text in texts[len(texts) - len(shown) :])


@given(st.integers(0, 2 * MAX_TEXT_CHARS))
def test_no_secret_is_recorded_wherever_it_stands(position):
    """A secret is masked also where a text is cut in the middle of it, and no beginning of it is left."""
    text = "k" * position + f" {SECRET} " + "k" * MAX_TEXT_CHARS
    result = ToolResult("call_1", "read", (Text(text),))
    call = ToolCall("call_1", "read", json.dumps({"deep": [json.dumps({"password": "hunter2hunter2"})], "key": SECRET}))
    attributes = describe_messages(
        Message.from_text("user", text), Message("assistant", (call,)), Message("tool", (result,))
    )
    assert SECRET[:12] not in str(attributes)
    assert "hunter2" not in str(attributes)
    assert SECRET[:12] not in str(describe_output(Message.from_text("assistant", text), "end_turn"))


def test_half_a_character_is_replaced():
    """Half of a surrogate pair, which Python strings can hold and no exporter can send, becomes a question mark."""
    attributes = describe_messages(Message.from_text("user", "kelp \ud83d end"))
    assert read_texts(attributes[INPUT]) == ["kelp ? end"]
