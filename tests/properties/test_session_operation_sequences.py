"""A stored session under any sequence of operations: nothing said is lost, and what was decided stands.

The machine speaks to journals as an agent loop does. What it holds against them is its own: the messages it said, the
bytes it saw sent, and the log as it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import example_counts
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Raw
from msgspec.json import Decoder
from msgspec.structs import asdict
from sample_conversations import make_text
from sample_entries import SAMPLE_KEY, is_same_request

from holdfast import PlanInputs, Policy
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Media, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import plan_request
from holdfast.planning.stages.truncate import ResultLimits, truncate_entry_messages
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import (
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.plan import Plan
from holdfast.state.target import Target
from holdfast.state.view import build_projection
from holdfast.store.base import SessionStore
from holdfast.store.blobs.blob_names import NOTE_CAPPED
from holdfast.store.open_store import open_store

STEPS = settings(
    max_examples=example_counts.choose(quick=4, ci=20, thorough=200),
    stateful_step_count=50 if example_counts.IS_THOROUGH else 25,
    deadline=None,
    derandomize=not example_counts.IS_THOROUGH,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    database=None,
)
MEMORY_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A place that waits for no disk: what is tested here is not durability."""

FIELDS, ELEMENTS = Decoder(dict[str, Raw]), Decoder(list[Raw])
MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-5-5"),
    ("openai-chat", "gpt-5"),
    ("openai-responses", "gpt-5"),
    ("gemini", "gemini-3-pro-preview"),
]
"""All four APIs, and a model that binds its thinking to the prefix."""
GEMINI = 4
"""Where calls of others carry a stand-in for a signature, until their turn is over."""
OPTIONS = frozenset({"anthropic.thinking-off", "anthropic.thinking-first"})
"""Rules about options of the request, which nobody here sets."""
POLICY = Policy().with_settings(
    window={"min_budget": 0},
    results={"append_chars": 20_000, "spill_chars": 2_500, "preview_chars": 600, "outline_chars": 200},
    prune={"keep_tokens": 300, "min_tokens": 100},
    media={"max_count": 3},
    history={"max_turns": 0},
)
"""Our own policy with limits that short texts reach."""
POLICIES = [
    (POLICY, 7_000),
    (POLICY.with_settings(prune={"when": ("cold", "broken", "space", "price")}), 9_000),
    (POLICY.with_settings(results={"spill_chars": 0}, compaction={"enabled": False}), 30_000),
    (POLICY.with_settings(history={"max_turns": 3}), 60_000),
    (Policy.preset("openclaw"), 17_000),
    (Policy.preset("claude-code"), 50_000),
    (Policy.preset("opencode"), 40_000),
]
"""Each with a window in which it has something to do."""
PICTURE = Media("image", "image/png", 68, "shot.png", "iVBORw0KGgo=")
INPUTS = {
    "warm": PlanInputs(),
    "cold": PlanInputs("cold", idle_seconds=4_000),
    "forced": PlanInputs(force_compaction=True),
    "full": PlanInputs(can_spill=False),
}

seeds = st.integers(0, 99)
sizes = st.sampled_from([1, 900, 2_000, 9_000, 30_000])
picks = st.integers(0, 2**16)


class Line:
    """One branch, as the one who goes on with it knows it."""

    def __init__(self, journal: Journal, place: int = 0) -> None:
        self.journal = journal
        self.place = place
        self.calls: list[ToolCall] = []
        self.open: list[ToolCall] = []
        """Calls without a result."""
        self.stale: set[str] = set()
        """Those among them that a request was sent without: it said so of them, and what comes now is late."""
        self.sent: list[bytes] | None = None
        """The messages of the last request."""
        self.answered = True
        self.moved = False
        """Whether something lies between that may change what was sent."""
        self.grown = ConversationState()
        """The branch, extended entry by entry since the line began."""
        self.known: list[str] = []


class SessionMachine(RuleBasedStateMachine):
    """Says, asks, answers, undoes, forks, switches and opens again; see the rules."""

    where = ":memory:"

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory(dir=MEMORY_FOLDER)
        self.store: SessionStore = self.opened()
        self.log: list[Entry] = []
        self.said: dict[str, Message] = {}
        self.calls = self.turn = 0

    def opened(self) -> SessionStore:
        """Return the store, opened."""
        return open_store(self.where if self.where == ":memory:" else Path(self.place.name) / self.where)

    def teardown(self) -> None:
        """Close and delete the store."""
        self.store.close()
        self.place.cleanup()

    @initialize(
        kind=st.integers(0, len(POLICIES) - 1),
        place=st.integers(0, len(MODELS) - 1),
        system=st.booleans(),
        steps=st.integers(0, 4),
        size=sizes,
    )
    def begin(self, kind: int, place: int, system: bool, steps: int, size: int) -> None:
        """Start a session, with a few steps behind it."""
        self.policy, window = POLICIES[kind]
        self.targets = [get_target(*place, window=window, setup=RequestSetup("f", 200)) for place in MODELS]
        self.lines = [Line(Journal.open(self.store, SAMPLE_KEY, self.policy), place)]
        self.line = self.lines[0]
        if system:
            self.tell(Message.from_text("system", "You write code."))
        self.tell(Message.from_text("user", "Go."))
        self.work(steps, kind, size, "warm")

    # -- what the machine knows ----------------------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Append a message."""
        (id_,) = self.line.journal.append(message)
        self.said[id_] = message

    def path(self) -> list[Entry]:
        """Return the log of the line."""
        return self.store.read_path(SAMPLE_KEY, self.line.journal.leaf)

    def whole(self) -> ConversationState:
        """Return the branch of the line, built at once from its log."""
        return ConversationState.from_entries(self.path())

    def planned(self, state: ConversationState, place: int) -> Plan:
        """Return a plan that nobody carries out; turns that gave way are read where it needs them."""
        try:
            return plan_request(state, self.targets[place], self.policy)
        except LookupError:
            return plan_request(self.whole(), self.targets[place], self.policy)

    # -- rules ---------------------------------------------------------------------------------------------------------

    @rule(seed=seeds, size=sizes, shows=st.booleans())
    def say(self, seed: int, size: int, shows: bool) -> None:
        """The user says something, whether or not anything is open."""
        self.tell(Message("user", (Text(make_text(seed, size)), *([PICTURE] if shows else []))))
        self.line.moved |= any(call.signature is None for call in self.line.calls) and self.line.place == GEMINI

    @precondition(lambda self: self.whole().history.messages[-1].role != "assistant")
    @rule(world=st.sampled_from(["warm", "warm", "warm", "cold", "forced", "full"]))
    def ask(self, inputs: str) -> None:
        """A request is prepared and sent."""
        line, where = self.line, self.targets[self.line.place]
        whole = self.whole()
        prepared = line.journal.prepare_request(where, INPUTS[inputs])
        plan, sent = prepared.plan, list_wire_messages(where, prepared.messages)
        if prepared.request_id in {entry.id for entry in self.log}:
            assert line.sent in (None, sent), "a retry is the same request"
            return
        self.check_valid(where, plan, prepared.messages)
        self.check_texts(whole, plan)
        if inputs == "full":
            assert plan.blobs == ()
        late = {edit.rule for edit in plan.record if edit.span.start < whole.last_request.seen_count}
        new = bool(late) or plan.compaction is not None
        assert "spill" not in late, "what was seen whole is frozen"
        if late == {"prune"} and self.policy.settings.prune.when == ("cold", "broken"):
            assert inputs == "cold" or line.sent is None or plan.compaction, "edit-when-broken-anyway"
        if line.sent is not None and not (new or line.moved):
            stands = line.sent if line.answered else line.sent[:-1]
            assert sent[: len(stands)] == stands, "prefix-only-grows"
        line.sent, line.moved, line.answered = sent, False, False
        line.stale |= {call.id for call in line.open}

    @precondition(lambda self: not self.line.answered)
    @rule(calls=st.integers(0, 3), seed=seeds, thinks=st.booleans(), tokens=st.sampled_from([0.9, 1.0, 1.3]))
    def answer(self, calls: int, seed: int, thinks: bool, tokens: float) -> None:
        """The model answers, with thinking and calls."""
        line = self.line
        api = MODELS[line.place][0]
        parts: list[Part] = []
        if thinks and api != "openai-responses":
            parts.append(
                Thinking("hm", ProviderSignature(api, "", "reasoning_content" if api == "openai-chat" else "c2ln"))
            )
        if not calls or seed % 2:
            parts.append(Text(make_text(seed, 50)))
        seal = ProviderSignature(api, "", "c2ln") if api == "gemini" else None
        made = [ToolCall(f"call_{self.calls + n}", "read", f'{{"path":"{seed}"}}', seal) for n in range(calls)]
        self.calls += calls
        message = Message("assistant", (*parts, *made))
        used = Usage(int(tokens * max(1, line.journal.state.last_request.tokens)), 20)
        self.said[line.journal.record_answer(message, used)] = message
        line.open, line.answered = [*line.open, *made], True
        line.calls += made

    @precondition(lambda self: self.line.open)
    @rule(number=st.integers(1, 3), seed=seeds, size=sizes, alone=st.booleans(), late=st.booleans())
    def results(self, number: int, seed: int, size: int, alone: bool, late: bool) -> None:
        """Tools give back something: in one message or several, some of them when nobody waits any more."""
        line = self.line
        made = line.open[-number:] if late else line.open[:number]
        shown = (PICTURE,) if seed % 5 == 0 else ()
        parts = [
            ToolResult(call.id, call.name, (Text(make_text(seed + n, size)), *shown), is_error=seed % 7 == 0)
            for n, call in enumerate(made)
        ]
        for message in [Message("tool", (part,)) for part in parts] if alone else [Message("tool", tuple(parts))]:
            self.tell(message)
        line.open = [call for call in line.open if call not in made]
        line.moved |= any(call.id in line.stale for call in made) or not self.is_next(made)

    def is_next(self, made: list[ToolCall]) -> bool:
        """Return whether nothing but results stands between these calls and their results."""
        newest = next(one for one in reversed(self.whole().history.messages.slice()) if one.role != "tool")
        return all(call in newest.calls for call in made)

    @rule(steps=st.integers(1, 4), seed=seeds, size=sizes, world=st.sampled_from(["warm", "cold", "forced"]))
    def work(self, steps: int, seed: int, size: int, inputs: str) -> None:
        """The agent takes a few steps, as most do."""
        if self.line.open or self.whole().history.messages[-1].role == "assistant":
            self.say(seed, 60, shows=False)
        for step in range(steps):
            self.ask(inputs if step == 0 else "warm")
            self.answer(1 + (seed + step) % 3, seed, thinks=seed % 3 == 0, tokens=1.0)
            self.results(3, seed + step, size, alone=step % 2 == 0, late=False)

    @precondition(lambda self: self.whole().view.active_decisions)
    @rule(pick=picks)
    def undo(self, pick: int) -> None:
        """The newest decision is taken back, or any."""
        law = [id_ for id_, _ in self.whole().view.active_decisions]
        chosen = law[pick % len(law)] if pick % 2 else None
        assert self.line.journal.undo(chosen) == (chosen or law[-1])
        self.line.moved = True

    @precondition(lambda self: len(self.lines) < 4)
    @rule(pick=picks)
    def fork(self, pick: int) -> None:
        """Somebody goes on behind an older entry, beside this line."""
        path = self.path()
        entry = path[pick % len(path)]
        state = ConversationState.from_entries(path[: pick % len(path) + 1])
        if all(message.role == "system" for message in state.history.messages):
            return
        journal = self.line.journal.fork_at(entry.id)
        assert journal.leaf == entry.id
        assert is_same_request(journal.state, state)
        self.enter(journal, state)

    @precondition(lambda self: len(self.lines) < 4)
    @rule(pick=picks, most=st.sampled_from([200, 1_000]))
    def truncate(self, pick: int, most: int) -> None:
        """In session: the branch is copied with shorter results in it; the old one stays."""
        path = self.path()
        long = {entry.id: said for entry in path if (said := shorten_results(entry, most)) is not None}
        if not long:
            return
        chosen = dict(list(long.items())[pick % len(long) :])
        leaf = self.store.copy_branch(SAMPLE_KEY, chosen, self.line.journal.leaf)
        copy = self.store.read_path(SAMPLE_KEY, leaf)
        told = [entry for entry in path if isinstance(entry.body, MessageEntry)]
        again = [entry for entry in copy if isinstance(entry.body, MessageEntry)]
        for old, new in zip(told, again, strict=True):
            assert new.body.sized_message.message == chosen.get(old.id, old.body.sized_message.message)
            self.said.setdefault(new.id, new.body.sized_message.message)
        journal = Journal.open(self.store, SAMPLE_KEY, self.policy, leaf=leaf)
        self.enter(journal, ConversationState.from_entries(copy))

    def enter(self, journal: Journal, state: ConversationState) -> None:
        """Go on with a new line."""
        line = Line(journal, self.line.place)
        given = {result.call_id for message in state.history.messages for result in message.results}
        line.calls = [call for message in state.history.messages for call in message.calls]
        line.open = [call for call in line.calls if call.id not in given]
        line.stale = {call.id for call in line.open}
        self.lines.append(line)
        self.line = line

    @precondition(lambda self: len(self.lines) > 1)
    @rule(pick=picks)
    def go(self, pick: int) -> None:
        """Another line goes on."""
        self.line = self.lines[pick % len(self.lines)]

    @rule(step=st.integers(1, len(MODELS) - 1))
    def switch(self, step: int) -> None:
        """The next requests go to another model or API."""
        self.line.place, self.line.sent = (self.line.place + step) % len(MODELS), None

    @rule()
    def reload(self) -> None:
        """same-after-restart: another process opens the session, and what it would send are the same bytes."""
        before = [self.would_send(line) for line in self.lines]
        if self.where != ":memory:":
            self.store.close()
            self.store = self.opened()
        for line in self.lines:
            line.journal = Journal.open(self.store, SAMPLE_KEY, self.policy, leaf=line.journal.leaf)
        assert before == [self.would_send(line) for line in self.lines]

    def would_send(self, line: Line) -> list[bytes]:
        """Return the messages of the request that would come next."""
        current, self.line = self.line, line
        plan = self.planned(line.journal.state, line.place)
        self.line = current
        return list_wire_messages(self.targets[line.place], build_messages_to_send(plan))

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check_valid(self, target: Target, plan: Plan, slots: Sequence[SizedMessage]) -> None:
        """valid-request: the request is one that the API takes."""
        if slots:
            found = validate_request(
                build_request_body(target.api, target.model, slots, options=plan.options), target.api
            )
            wrong = [finding for finding in found if finding.level == "error" and finding.rule not in OPTIONS]
            assert wrong == [], f"valid-request: {target.api} {target.model}"

    def check_texts(self, whole: ConversationState, plan: Plan) -> None:
        """nothing-lost: the text behind each replacement can be read back, byte for byte."""
        for edit in (*plan.record, *(plan.compaction.edits if plan.compaction else ())):
            if edit.blob_hash and edit.span.part is not None:
                part = whole.history.messages[edit.span.start].parts[edit.span.part]
                text = get_result_text(part) if isinstance(part, ToolResult) else part.text  # type: ignore[union-attr]
                assert self.store.blobs.read_text(edit.blob_hash) == text

    @invariant()
    def all_holds(self) -> None:
        """Everything below, after each step."""
        if self.said:
            self.the_log_only_grows()
            self.the_fold_is_lawful()
            self.every_api_takes_it()

    def the_log_only_grows(self) -> None:
        """nothing-lost: each entry stays as it was, and each message is in it as it was said, or its text beside it."""
        entries = self.store.read_entries(SAMPLE_KEY)
        assert entries[: len(self.log)] == self.log
        places = {entry.id: number for number, entry in enumerate(entries)}
        for entry in entries[len(self.log) :]:
            if isinstance(entry.body, MessageEntry) and entry.body.sized_message.message != self.said[entry.id]:
                note = entries[places[entry.parent or ""]].body
                assert isinstance(note, NoteEntry)
                assert note.reason == NOTE_CAPPED
                kept = {self.store.blobs.read_text(hash_) for hash_ in note.data["blobs"]}
                assert kept <= set(list_texts(self.said[entry.id]))
                assert set(list_texts(self.said[entry.id])) - set(list_texts(entry.body.sized_message.message)) <= kept
        assert self.said.keys() <= places.keys()
        self.log = entries

    def the_fold_is_lawful(self) -> None:
        """Extending one by one == building at once == opening the active part == what the journal holds."""
        line, path = self.line, self.path()
        whole = ConversationState.from_entries(path)
        assert [entry.id for entry in path[: len(line.known)]] == line.known
        for entry in path[len(line.known) :]:
            line.grown = apply_entry(line.grown, entry)
        line.known = [entry.id for entry in path]
        assert describe_state(line.grown) == describe_state(whole)
        assert whole.view.shown_tokens == sum(sized.tokens for sized in build_projection(whole))
        assert is_same_request(self.store.open_state(SAMPLE_KEY, line.journal.leaf), whole)
        assert is_same_request(line.journal.state, whole)
        revoked = {entry.body.revoked_id for entry in path if isinstance(entry.body, RevokeEntry)}
        decided = [entry.id for entry in path if isinstance(entry.body, DecisionEntry | CompactionEntry)]
        assert [id_ for id_, _ in whole.view.active_decisions] == [id_ for id_ in decided if id_ not in revoked]

    def every_api_takes_it(self) -> None:
        """valid-request: whatever happened, the next request is valid, whichever of the APIs it goes to."""
        self.turn += 1
        place = self.turn % len(MODELS)
        plan = self.planned(self.line.journal.state, place)
        self.check_valid(self.targets[place], plan, build_messages_to_send(plan))


def list_wire_messages(target: Target, slots: Sequence[SizedMessage]) -> list[bytes]:
    """Return the elements of the request's list of messages, byte for byte, without cache breakpoints."""
    found = FIELDS.decode(build_request_body(target.api, target.model, slots))
    return [bytes(raw) for raw in ELEMENTS.decode(found[get_api_spec(target.api).messages_field])]


def shorten_results(entry: Entry, most: int) -> Message | None:
    """Return the message of an entry with its results in so many characters, if it has longer ones."""
    return truncate_entry_messages([entry], ResultLimits(most)).get(entry.id)


def list_texts(message: Message) -> list[str]:
    """Return the texts of a message, each by itself."""
    inner = [one for part in message.parts for one in (part.content if isinstance(part, ToolResult) else (part,))]
    return [one.text for one in inner if isinstance(one, Text)]


def describe_state(state: ConversationState) -> dict[str, object]:
    """Return all that a branch says of its own log."""
    known = {key: value for key, value in asdict(state).items() if key not in {"settled", "callers"}}
    return known | {
        "callers": {
            id_: index
            for id_, index in state.history.first_index_by_call_id.items()
            if index < len(state.history.sized_messages)
        }
    }


class StoredMachine(SessionMachine):
    """The same on disk."""

    where = "agent.db"


@pytest.mark.counts
@pytest.mark.parametrize("machine", [SessionMachine, StoredMachine])
def test_session_keeps_its_guarantees_after_every_operation(machine: type[SessionMachine]) -> None:
    """nothing-lost, prefix-only-grows, same-after-restart, valid-request and the fold law hold after every step of any
    sequence, in memory and on disk.
    """
    run_state_machine_as_test(machine, settings=STEPS)  # type: ignore[no-untyped-call]
