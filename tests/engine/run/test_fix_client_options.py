"""Options that a provider is known to refuse are changed before the first request, recorded and told once."""

from __future__ import annotations

import json

import pytest
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.planning.pipeline import Policy
from holdfast.state.changed_options import MAX_CHANGED_OPTIONS, ChangedOption, find_new_options
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_OPTIONS, NoteEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream

MODEL = "grok-4.6"
USER, ANSWER = {"role": "user", "content": "go"}, {"role": "assistant", "content": "x"}
NOW = 1_000_000


class Scenario:
    """A store with engines on it, one after the other, that send a client's bodies as the proxy does."""

    def __init__(self, api="openai-chat", model=MODEL, check_mode="changed", **options):
        self.api, self.model, self.check_mode, self.options = api, model, check_mode, options
        self.upstream = ProviderUpstream(Provider(ProviderSettings(tokenizer="words")))
        self.store, self.events = MemoryStore(), []

    def run(self, *bodies):
        """Send ``bodies`` through one engine."""

        async def send_all():
            async with Engine.open(
                self.store,
                upstream=self.upstream,
                target=get_target(self.api, self.model),
                listen=self.events.append,
                **self.options,
            ) as engine:
                session = await engine.session(SAMPLE_KEY)
                session.resources.clock = lambda: NOW
                session.resources.check_mode = self.check_mode
                for body in bodies:
                    async with session.run({"model": self.model, **body}) as run:
                        async for _ in run:
                            pass

        run_on_fake_clock(send_all)

    @property
    def sent(self):
        """The bodies that were sent, decoded."""
        return [json.loads(sent.body) for sent in self.upstream.sent]

    @property
    def notices(self):
        """The notices about fields, each as rule and place."""
        found = [event for event in self.events if isinstance(event, events.NoticeGiven) and event.path]
        return [(event.rule, event.path) for event in found]

    @property
    def state(self):
        """The state of the current branch."""
        return ConversationState.from_entries(self.store.read_path(SAMPLE_KEY))

    @property
    def recorded(self):
        """The recorded options, each as rule, place and time."""
        options = self.state.usage.learned_limits.changed_options
        return [(option.rule, option.path, option.since) for option in options]


def test_changed_option_is_recorded_and_told_once():
    """The second request, a restart and an edited past need neither another note nor another notice."""
    scenario = Scenario()
    body = {"presence_penalty": 0, "messages": [USER]}
    scenario.run(body, {**body, "messages": [USER, ANSWER, USER]})
    scenario.run({**body, "messages": [USER, ANSWER, USER, ANSWER, USER]})
    assert not any("presence_penalty" in sent for sent in scenario.sent)
    assert scenario.notices == [("xai.refused-field", "$.presence_penalty")]
    assert scenario.recorded == [("xai.refused-field", "$.presence_penalty", NOW)]
    notes = [entry.body for entry in scenario.store.read_path(SAMPLE_KEY) if isinstance(entry.body, NoteEntry)]
    assert [note.reason for note in notes].count(NOTE_OPTIONS) == 1
    scenario.run({**body, "messages": [{"role": "user", "content": "something else"}]})
    assert len(scenario.notices) == 1
    assert scenario.recorded == [("xai.refused-field", "$.presence_penalty", NOW)]
    assert ConversationState.load(scenario.state.dump()).usage == scenario.state.usage


def test_later_option_is_told_when_it_comes():
    """A client that sends another refused option is told of that one alone."""
    scenario = Scenario()
    scenario.run({"presence_penalty": 0, "messages": [USER]})
    scenario.run({"presence_penalty": 0, "stop": ["x"], "messages": [USER, ANSWER, USER]})
    assert [path for _, path in scenario.notices] == ["$.presence_penalty", "$.stop"]


def test_option_that_the_engine_mends_itself_is_told_too():
    """Anthropic's newest models refuse a temperature; the check before the send leaves it out, and says so."""
    scenario = Scenario("anthropic", "claude-opus-4-8", check_mode="all")
    scenario.run({"max_tokens": 100, "temperature": 0.5, "messages": [USER]})
    assert "temperature" not in scenario.sent[0]
    assert scenario.notices == [("anthropic.model-sampling", "$.temperature")]
    assert [path for _, path, _ in scenario.recorded] == ["$.temperature"]


@pytest.mark.parametrize("body", [{"messages": [USER]}, {"temperature": 0.5, "messages": [USER]}])
def test_valid_options_leave_no_trace(body):
    """A request that needs no change leaves neither note nor notice."""
    scenario = Scenario()
    scenario.run(body)
    assert scenario.sent == [{"model": MODEL, **body}]
    assert (scenario.notices, scenario.recorded) == ([], [])


def test_recorded_options_are_bounded():
    """A client that sends new refused options for ever fills no log."""
    scenario = Scenario(policy=Policy())
    options = [ChangedOption("r", f"$.f{number}", "left out") for number in range(MAX_CHANGED_OPTIONS + 9)]

    async def record():
        async with Engine.open(
            scenario.store, upstream=scenario.upstream, target=get_target("openai-chat", "m")
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            journal = session.journal
            for option in options:
                journal.record_changed_options([option, option])

    run_on_fake_clock(record)
    assert scenario.state.usage.learned_limits.changed_options == tuple(options[:MAX_CHANGED_OPTIONS])
    notes = [entry for entry in scenario.store.read_path(SAMPLE_KEY) if isinstance(entry.body, NoteEntry)]
    assert len(notes) <= MAX_CHANGED_OPTIONS + 1


def test_find_new_options_goes_by_rule_and_place():
    """The words and the time of an option do not make it another one."""
    known = ChangedOption("r", "$.a", "left out", 5)
    other = ChangedOption("r", "$.b", "left out")
    assert find_new_options([ChangedOption("r", "$.a", "lowered"), other, other], [known]) == (other,)
