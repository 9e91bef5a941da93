"""Why a request missed the provider's cache: whole sessions against the strict provider's own cache.

The strict provider shares no rule with what is tested here. In each session exactly one thing happens, and the event,
``stats`` and ``why`` name it.
"""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import events
from holdfast.cli import holdfast_command
from holdfast.config import get_target, load_shipped_catalog
from holdfast.engine.engine import Engine
from holdfast.planning.pipeline import Policy
from holdfast.reports.requests.cache_misses import find_session_misses
from holdfast.reports.sessions.account import compute_savings_and_state
from holdfast.state.entries import RequestEntry, RequestSetup
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store
from holdfast.testing.clock import FakeClock
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

KEY = "kelp"
MODEL = "claude-opus-5-5"
TOOL = {"name": "read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}}
WORDS = ("kelp ", "rock ", "tide ", "holdfast ", "frond ")


def make_text(number: int, words: int) -> str:
    """Return a text of ``words`` words that no other number gives."""
    return f"Note {number}. " + "".join(WORDS[(number + at * at) % len(WORDS)] for at in range(words))


class ClientSession:
    """A client that sends its whole conversation with each request, with breakpoints as Claude Code sets them."""

    api = "anthropic"

    def __init__(self, provider_settings: ProviderSettings | None = None, store=None) -> None:
        self.clock = FakeClock(1_000.0)
        self.store = store or MemoryStore()
        self.seen_events: list[events.Event] = []
        self.provider = Provider(provider_settings, clock=self.clock)
        self.messages: list[dict] = []
        self.fields: dict = {"model": MODEL, "max_tokens": 500, "tools": [TOOL], "system": make_text(0, 900)}

    def build_body(self) -> dict:
        messages = deepcopy(self.messages)
        last = messages[-1]
        last["content"] = [{"type": "text", "text": last["content"], "cache_control": {"type": "ephemeral"}}]
        system = [{"type": "text", "text": self.fields["system"], "cache_control": {"type": "ephemeral"}}]
        return {**self.fields, "system": system, "messages": messages}

    async def send(self, session, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        async with session.run(self.build_body()) as run:
            async for _ in run:
                pass
        self.messages.append({"role": "assistant", "content": run.answer.message.text})

    def play(self, *turns, policy: Policy | None = None, window: int = 200_000) -> None:
        """Play ``turns``: a text is sent, a function is called with this client and the session, and awaited."""

        async def run_scenario():
            opening = Engine.open(
                self.store,
                upstream=ProviderUpstream(self.provider),
                listen=self.seen_events.append,
                policy=policy or Policy(),
                target=get_target(self.api, self.fields["model"], window=window),
            )
            async with opening as engine:
                engine.resources.clock = lambda: int(self.clock() * 1_000)
                session = await engine.session(KEY)
                for turn in turns:
                    if isinstance(turn, str):
                        self.clock.advance(10)
                        await self.send(session, turn)
                    else:
                        await turn(self, session)

        self.clock.run(run_scenario)

    @property
    def miss_events(self) -> list[events.CacheMissed]:
        return [event for event in self.seen_events if isinstance(event, events.CacheMissed)]

    @property
    def entries(self):
        return self.store.read_entries(KEY)

    @property
    def misses(self):
        return find_session_misses(self.entries, load_shipped_catalog())

    def check_only_miss(self, cause: str):
        """Check that the last request missed for ``cause`` and no other missed, by all three doors; return the miss."""
        (request_id, miss), *others = self.misses.items()
        assert not others
        request_ids = [entry.id for entry in self.entries if isinstance(entry.body, RequestEntry)]
        assert request_id == request_ids[-1]
        assert miss.cause == cause
        (event,) = self.miss_events
        assert (event.cause, event.missed_tokens) == (cause, miss.missed_tokens)
        leaf = self.store.get_session(KEY).leaf_id
        account, _ = compute_savings_and_state(KEY, self.entries, leaf, load_shipped_catalog())
        assert {name: total.count for name, total in account.cache_misses.items()} == {cause: 1}
        dollars = account.cache_misses[cause].dollars
        assert (dollars is None) == bool(account.unpriced_calls)
        assert dollars is None or dollars > 0
        return miss


class ChatSession(ClientSession):
    """A client of Chat Completions, whose provider caches without breakpoints."""

    api = "openai-chat"

    def __init__(self, model: str) -> None:
        super().__init__()
        self.fields = {"model": model, "system": make_text(0, 1_200)}

    def build_body(self) -> dict:
        system = {"role": "system", "content": self.fields["system"]}
        return {"model": self.fields["model"], "messages": [system, *self.messages]}


CHAT_MODELS = ("gpt-5.5", "gpt-6.2-sol")
"""One whose cache reports only reads, in steps of 128 tokens; one that reports and charges writes."""

TURNS = st.lists(st.integers(700, 1_500), min_size=3, max_size=6).map(
    lambda sizes: [make_text(number, words) for number, words in enumerate(sizes, 1)]
)


def wait(seconds: float):
    """Return a turn in which nothing is sent for ``seconds``."""

    async def turn(client: ClientSession, _session) -> None:
        client.clock.advance(seconds)

    return turn


def set_fields(**fields):
    """Return a turn from which on the client sends other fields."""

    async def turn(client: ClientSession, _session) -> None:
        client.fields |= fields

    return turn


async def empty_cache(client: ClientSession, _session) -> None:
    """Lose the provider's cache, as after a restart of one of its servers."""
    client.provider._cache = type(client.provider._cache)()


@settings(max_examples=10, deadline=None)
@given(TURNS, st.floats(0, 280))
def test_no_miss_is_reported_where_everything_is_read(turns, pause):
    """A conversation that only grows, in time, never misses."""
    client = ClientSession()
    client.play(*[step for text in turns for step in (wait(pause), text)])
    assert client.miss_events == []
    assert client.misses == {}


@settings(max_examples=6, deadline=None)
@given(TURNS, st.floats(301, 90_000))
def test_pause_beyond_the_lifetime_is_told_as_expired(turns, pause):
    """The pause is in the miss, in seconds, beside the lifetime."""
    client = ClientSession()
    client.play(*turns, wait(pause), "Go on.")
    miss = client.check_only_miss("expired")
    assert miss.lifetime_seconds == 300
    assert miss.idle_seconds == pytest.approx(pause + 10, abs=1)


@settings(max_examples=6, deadline=None)
@given(TURNS, st.sampled_from(["claude-sonnet-5", "claude-opus-4-8"]))
def test_other_model_is_told(turns, model):
    """The miss names both models."""
    client = ClientSession()
    client.play(*turns, set_fields(model=model), "Go on.")
    assert client.check_only_miss("model").models == (MODEL, model)


def test_going_back_to_a_model_that_still_has_its_cache_is_no_miss():
    """The first model reads all that it has; only the switch to the other one misses."""
    client = ClientSession()
    texts = [make_text(number, 1_200) for number in range(1, 4)]
    other_turn = make_text(4, 2_000)
    client.play(*texts, set_fields(model="claude-sonnet-5"), other_turn, set_fields(model=MODEL), "Go on.")
    assert [event.cause for event in client.miss_events] == ["model"]


CHANGED_FIELDS = {
    "tools": {"tools": [TOOL, TOOL | {"name": "write"}]},
    "system": {"system": make_text(99, 900)},
    "thinking": {"thinking": {"type": "adaptive"}},
    "tool_choice": {"tool_choice": {"type": "none"}},
}


@settings(max_examples=6, deadline=None)
@given(TURNS, st.sampled_from([*CHANGED_FIELDS]))
def test_changed_field_before_the_messages_is_told_by_name(turns, field):
    """Tools, system prompt and the options that part the cache: the miss names the one that changed."""
    client = ClientSession()
    client.play(*turns, set_fields(**CHANGED_FIELDS[field]), "Go on.")
    assert client.check_only_miss("tools").fields == (field,)


@settings(max_examples=12, deadline=None)
@given(TURNS, st.data())
def test_edit_of_the_client_is_told_with_its_first_byte(turns, data):
    """Wherever the client changes one character of an older message, the miss names message, part and byte."""
    edited = data.draw(st.integers(0, len(turns) - 2)) * 2
    text = turns[edited // 2]
    byte = data.draw(st.integers(0, len(text) - 1))
    client = ClientSession()

    async def edit(client: ClientSession, _session) -> None:
        client.messages[edited]["content"] = text[:byte] + "#" + text[byte + 1 :]

    client.play(*turns, edit, "Go on.")
    difference = client.check_only_miss("client-edit").difference
    assert (difference.message, difference.part, difference.byte) == (edited, 0, byte)


@settings(max_examples=6, deadline=None)
@given(TURNS, st.integers(1, 3))
def test_rewind_that_reads_all_that_is_left_is_no_miss(turns, count):
    """A client that takes back its last turns repeats nothing after the place where it parts."""
    client = ClientSession()
    stop = max(1, len(turns) - count)

    async def rewind(client: ClientSession, _session) -> None:
        del client.messages[2 * stop :]

    client.play(*turns, rewind, make_text(50, 800))
    assert client.miss_events == []
    assert client.misses == {}


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(1_200, 1_500), min_size=3, max_size=6))
def test_decision_is_told_with_its_entry_and_rule(sizes):
    """A compaction breaks the prefix, and its summary is written to the cache: the miss names the entry of the log."""
    client = ClientSession()
    turns = [make_text(number, words) for number, words in enumerate(sizes, 1)]

    async def compact(_client, session) -> None:
        outcome = await session.compact()
        assert outcome.outcome == "compacted"

    policy = Policy().with_settings(compaction={"tail_share": 0.02})
    client.play(*turns, compact, "Go on.", policy=policy)
    miss = client.check_only_miss("decision")
    assert miss.rule == "compaction"
    assert miss.decision in {entry.id for entry in client.entries}


@settings(max_examples=3, deadline=None)
@given(st.lists(st.integers(500, 2_000), min_size=20, max_size=30))
def test_every_miss_of_a_session_in_a_small_window_is_a_decision(sizes):
    """The client only appends, in time and to one model: whatever is read again was our own doing."""
    client = ClientSession()
    client.play(*[make_text(number, words) for number, words in enumerate(sizes, 1)], window=16_000)
    assert {miss.cause for miss in client.misses.values()} == {"decision"}
    assert [event.cause for event in client.miss_events] == ["decision"] * len(client.misses)


def test_first_request_after_a_restart_is_compared_with_the_last_one_before():
    """The commonest miss is that of a session that is resumed later, mostly by a new process."""
    client = ClientSession()
    client.play(*[make_text(number, 1_200) for number in range(1, 4)])
    client.play(wait(3_600), "Go on.")
    assert client.check_only_miss("expired").idle_seconds == pytest.approx(3_610, abs=1)


def test_first_request_after_a_restart_reads_the_cache_of_the_one_before():
    """A restart by itself is no miss."""
    client = ClientSession()
    client.play(*[make_text(number, 1_200) for number in range(1, 4)])
    client.play("Go on.", "And on.")
    assert client.miss_events == []


@settings(max_examples=6, deadline=None)
@given(st.lists(st.sampled_from("ab"), min_size=6, max_size=10))
def test_conversations_in_turn_do_not_miss_for_each_other(order):
    """Two conversations of one session, as of a client and its subagent: each reads its own cache."""
    client = ClientSession()
    fields = {
        "a": client.fields,
        "b": client.fields | {"system": make_text(7, 1_100), "tools": [TOOL | {"name": "search"}]},
    }
    messages = {"a": [], "b": []}
    turns = []
    for number, name in enumerate(order):

        async def switch(client: ClientSession, _session, name=name) -> None:
            client.fields, client.messages = fields[name], messages[name]

        turns += [switch, make_text(number, 900)]
    client.play(*turns)
    assert client.miss_events == []
    assert client.misses == {}


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(CHAT_MODELS), TURNS)
def test_automatic_cache_of_a_growing_conversation_is_no_miss(model, turns):
    """What such a cache holds is not reported, or in steps; a conversation that grows still never misses."""
    client = ChatSession(model)
    client.play(*turns)
    assert client.miss_events == []
    assert {miss.cause for miss in client.misses.values()} <= {"unreported"}


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(CHAT_MODELS), TURNS, st.floats(1_801, 90_000))
def test_automatic_cache_expires(model, turns, pause):
    """The lifetimes of both are in the catalog: five minutes and half an hour."""
    client = ChatSession(model)
    client.play(*turns, wait(pause), "Go on.")
    assert client.check_only_miss("expired").lifetime_seconds <= 1_800


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(CHAT_MODELS), TURNS)
def test_changed_system_message_is_told_as_such(model, turns):
    """Where the system prompt is a message, its change is no edit of the conversation."""
    client = ChatSession(model)
    client.play(*turns, set_fields(system=make_text(1, 1_200)), "Go on.")
    assert client.check_only_miss("tools").fields == ("system messages",)


def test_cache_that_the_provider_lost_is_unknown():
    """Nothing changed and no time passed, but the provider restarted with an empty cache."""
    client = ClientSession()
    client.play(*[make_text(number, 1_200) for number in range(1, 4)], empty_cache, "Go on.")
    miss = client.check_only_miss("unknown")
    assert miss.difference is None


def test_log_that_names_no_api_tells_no_change_of_model():
    """Logs of the first versions have requests without an API: that the newer ones name it is no change."""
    client = ClientSession()
    client.play(*[make_text(number, 1_200) for number in range(1, 4)], empty_cache, "Go on.")
    *older_ids, _ = [entry.id for entry in client.entries if isinstance(entry.body, RequestEntry)]
    old_entries = []
    for entry in client.entries:
        body = replace(entry.body, api="") if entry.id in older_ids else entry.body
        old_entries.append(replace(entry, body=body))
    misses = find_session_misses(old_entries, load_shipped_catalog())
    assert [miss.cause for miss in misses.values()] == ["unknown"]


def test_provider_without_figures_is_unreported():
    """No request is called a miss, and none is said to have hit."""
    client = ClientSession(ProviderSettings(has_cache=False))
    client.play(*[make_text(number, 1_200) for number in range(1, 4)])
    assert client.miss_events == []
    assert [miss.cause for miss in client.misses.values()] == ["unreported", "unreported"]


def test_log_without_the_digests_of_fields_gives_unknown():
    """Logs of older versions do not say which option changed: the same session, without that field, is unknown."""
    client = ClientSession()
    texts = [make_text(number, 1_200) for number in range(1, 4)]
    client.play(*texts, set_fields(thinking={"type": "adaptive"}), "Go on.")
    client.check_only_miss("tools")
    old_entries = []
    for entry in client.entries:
        body = entry.body
        if isinstance(body, RequestSetup):
            body = replace(body, field_digests=())
        old_entries.append(replace(entry, body=body))
    misses = find_session_misses(old_entries, load_shipped_catalog())
    assert [miss.cause for miss in misses.values()] == ["unknown"]


def test_commands_tell_the_miss_in_words_and_as_json(tmp_path):
    """``why`` gives a sentence with the numbers and the first differing byte, ``stats`` a count and the cost."""
    path = tmp_path / "kelp.db"
    with open_store(path) as store:
        client = ClientSession(store=store)
        texts = [make_text(number, 1_200) for number in range(1, 4)]

        async def edit(client: ClientSession, _session) -> None:
            client.messages[2]["content"] = texts[1][:40] + "#" + texts[1][41:]

        client.play(*texts, edit, "Go on.")
        miss = client.check_only_miss("client-edit")
        (request_id,) = client.misses

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(holdfast_command, [*arguments, "--store", str(path)], env={"COLUMNS": "400"})
        assert result.exit_code == 0, result.output
        return result.stdout

    lines = run("why", KEY, request_id).splitlines()
    sentence = (
        f"cache miss (client-edit): {miss.read_tokens:,} tokens were read from the cache where about "
        f"{miss.expected_tokens:,} could have been, so {miss.missed_tokens:,} were processed again: "
        "the client changed message 2 first, from byte 40 of its part 0 on"
    )
    assert sentence in lines
    detail = json.loads(run("why", KEY, request_id, "--json"))
    assert detail["cache_miss"]["difference"] == {"message": 2, "part": 0, "byte": 40}
    assert f"cache miss (client-edit): {detail['cache_miss_text']}" == sentence
    total = json.loads(run("stats", KEY, "--no-foresee", "--json"))["cache_misses"]["client-edit"]
    assert (total["count"], total["tokens"]) == (1, miss.missed_tokens)
    assert f"client-edit 1 (~{miss.missed_tokens:,} tokens, $" in run("stats", KEY, "--no-foresee")
