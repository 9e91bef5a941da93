"""The rebuilt body of a request shows what the provider received, and says where it cannot be certain of that."""

from __future__ import annotations

import json

import anyio
import example_counts
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sample_conversations import make_text

from holdfast import Policy, encode_messages
from holdfast.config import get_target, load_shipped_catalog
from holdfast.engine.engine import Engine
from holdfast.messages.equality import is_equivalent_message
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.reports.requests.rebuilt_request import describe_certainty, load_rebuilt_request
from holdfast.state.entries import RequestEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream

CATALOG = load_shipped_catalog()
WINDOW = 12_000
POLICY = Policy().with_settings(
    window={"min_budget": 0}, results={"spill_chars": 2_500, "preview_chars": 600}, prune={"keep_tokens": 300}
)
"""Limits that short texts reach, so that some steps spill, prune and compact."""


def drop_cache_marks(value):
    """Return a JSON value without the marks for the cache, which no log holds: a text that has one is a block."""
    if isinstance(value, list):
        return [drop_cache_marks(item) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {name: drop_cache_marks(item) for name, item in value.items() if name != "cache_control"}
    if isinstance(fields.get("content"), str):
        fields["content"] = [{"type": "text", "text": fields["content"]}]
    return fields


def get_messages(body, api):
    """Return the messages of a body as JSON values, with the system prompt that an API has beside them."""
    value = json.loads(body)
    spec = API_SPECS[api]
    return drop_cache_marks([value[spec.messages_field], [value.get(name) for name in spec.system_fields]])


def run_session(api, steps):
    """Return a store with a session of ``steps`` through the strict provider, and the bodies that it received."""
    script = [ScriptedAnswer(f"I look at {index}.", (("read", {"number": index}),)) for index in range(len(steps))]
    upstream = ProviderUpstream(Provider(ProviderSettings(window=WINDOW), script))
    store = MemoryStore()
    target = get_target(api, STRICTEST_MODELS[api], window=WINDOW)

    async def run_all():
        async with Engine.open(store, upstream=upstream, policy=POLICY, target=target) as engine:
            session = await engine.session("one")
            answer = await session.ask(Message.from_text("system", "You find leaks."), "Go on.")
            for seed, size, is_interrupted in steps:
                results = [
                    ToolResult(call.id, call.name, (Text(make_text(seed, size)),)) for call in answer.message.calls
                ]
                # A call without a result gets one in the request alone.
                answer = await session.ask("Never mind." if is_interrupted else Message("tool", tuple(results)))

    anyio.run(run_all)
    return store, [request.body for request in upstream.sent]


@settings(max_examples=example_counts.choose(quick=6, ci=20, thorough=200), deadline=None)
@given(
    st.sampled_from(sorted(API_SPECS)),
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([40, 900, 4_000, 9_000]), st.booleans()), min_size=1, max_size=8
    ),
)
@example("anthropic", [(1, 40, True), (2, 9_000, False), (3, 9_000, False), (4, 9_000, False), (5, 4_000, False)])
def test_a_rebuilt_request_shows_what_the_provider_received(api, steps):
    """The messages of each request are those that were sent, whatever was shortened or compacted before it."""
    store, sent = run_session(api, steps)
    info = store.get_session("one")
    requests = [entry for entry in store.read_path("one") if isinstance(entry.body, RequestEntry)]
    assert len(requests) == len(sent)
    for entry, body in zip(requests, sent, strict=True):
        rebuilt = load_rebuilt_request(store, info, entry.id, CATALOG)
        assert rebuilt.api == api
        assert rebuilt.is_confirmed
        assert get_messages(rebuilt.body, api) == get_messages(body, api)


def run_client(api, steps):
    """Return the same for a client that sends its whole conversation each time, with tools and a system prompt."""
    script = [ScriptedAnswer(f"I look at {index}.", (("read", {"number": index}),)) for index in range(len(steps))]
    upstream = ProviderUpstream(Provider(ProviderSettings(window=WINDOW), script))
    store = MemoryStore()
    spec = API_SPECS[api]
    setup = {"system": "You find leaks.", "max_tokens": 900} if api == "anthropic" else {}

    async def run_all():
        target = get_target(api, STRICTEST_MODELS[api], window=WINDOW)
        async with Engine.open(store, upstream=upstream, policy=POLICY, target=target) as engine:
            session = await engine.session("one")
            messages = [Message.from_text("user", "Go on.")]
            for seed, size in steps:
                value = {"model": STRICTEST_MODELS[api], spec.messages_field: encode_messages(api, messages), **setup}
                async with session.run(json.dumps(value, indent=1).encode()) as run:
                    async for _ in run:
                        pass
                results = [
                    ToolResult(call.id, call.name, (Text(make_text(seed, size)),)) for call in run.answer.message.calls
                ]
                messages += [run.answer.message, Message("tool", tuple(results))]

    anyio.run(run_all)
    return store, [request.body for request in upstream.sent]


@settings(max_examples=example_counts.choose(quick=6, ci=20, thorough=200), deadline=None)
@given(
    st.sampled_from(["anthropic", "openai-chat", "openai-responses"]),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([40, 900, 4_000])), min_size=1, max_size=6),
)
def test_a_rebuilt_request_of_a_client_has_its_messages(api, steps):
    """What a client wrote has the same content as the body that was sent, and is in the client's own bytes if it was
    sent so; what the client sent beside the messages is named as missing.
    """
    store, sent = run_client(api, steps)
    info = store.get_session("one")
    requests = [entry for entry in store.read_path("one") if isinstance(entry.body, RequestEntry)]
    assert len(requests) == len(sent)
    for entry, body in zip(requests, sent, strict=True):
        rebuilt = load_rebuilt_request(store, info, entry.id, CATALOG)
        assert rebuilt.is_confirmed
        sent_messages = parse_request(body, api).messages
        for message, sent_message in zip(parse_request(rebuilt.body, api).messages, sent_messages, strict=True):
            assert is_equivalent_message(message.message, sent_message.message)
        for message in sent_messages:
            if message.message.role != "assistant" and b"cache_control" not in bytes(message.raw):
                assert bytes(message.raw) in rebuilt.body
        if api == "anthropic":
            assert rebuilt.setup_fields == ("system",)
            assert "(system)" in " ".join(describe_certainty(rebuilt))


def test_a_recorded_request_says_that_it_was_not_sent_by_holdfast():
    """Of a session that another tool recorded the form is a guess, and is called one; a changed log is noticed."""
    store, _ = run_session("anthropic", [(1, 40, False)])
    path = store.read_path("one")
    request = next(entry for entry in path if isinstance(entry.body, RequestEntry))
    for digest, words in (("", "read from a recording of claude-code"), ("another", "may differ")):
        changed = [
            replace(entry, body=replace(entry.body, prefix_digest=digest)) if entry is request else entry
            for entry in path
        ]
        other = MemoryStore()
        other.import_entries("one", changed, info=store.get_session("one"))
        rebuilt = load_rebuilt_request(other, other.get_session("one"), request.id, CATALOG)
        assert not rebuilt.is_confirmed
        assert words in " ".join(describe_certainty(rebuilt, "claude-code"))
