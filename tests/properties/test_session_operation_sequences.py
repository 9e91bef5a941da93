"""A stored session under any sequence of operations: no message is lost, and decisions stay in force.

The machine uses journals as an agent loop does. It checks them against its own record: the messages it appended, the
bytes it saw sent, and the log as it was.
"""

from __future__ import annotations

import tempfile
from collections import Counter
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
    max_examples=example_counts.choose(quick=3, ci=10, thorough=200),
    stateful_step_count=50 if example_counts.IS_THOROUGH else 25,
    deadline=None,
    derandomize=not example_counts.IS_THOROUGH,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    database=None,
)
MEMORY_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A folder in memory where there is one, since these tests are not about durability."""

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
"""The index of the model for which unsigned calls of the current turn get a stand-in signature."""
OPTIONS = frozenset({"anthropic.thinking-off", "anthropic.thinking-first"})
"""Rules about options of the request, which these tests do not set."""
POLICY = Policy().with_settings(
    window={"min_budget": 0},
    results={"append_chars": 20_000, "spill_chars": 2_500, "preview_chars": 600, "outline_chars": 200},
    prune={"keep_tokens": 300, "min_tokens": 100},
    media={"max_count": 3},
    history={"max_turns": 0},
)
"""Holdfast's policy with limits that short texts reach."""
POLICIES = [
    (POLICY, 7_000),
    (POLICY.with_settings(prune={"when": ("cold", "broken", "space", "price")}), 9_000),
    (POLICY.with_settings(results={"spill_chars": 0}, compaction={"enabled": False}), 30_000),
    (POLICY.with_settings(history={"max_turns": 3}), 60_000),
    (Policy.preset("openclaw"), 17_000),
    (Policy.preset("claude-code"), 50_000),
    (Policy.preset("opencode"), 40_000),
]
"""Policies, each with a window in which it has to reduce requests."""
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


class Branch:
    """One branch of the session, with what the machine knows of it."""

    def __init__(self, journal: Journal, model_index: int = 0) -> None:
        self.journal = journal
        self.model_index = model_index
        self.calls: list[ToolCall] = []
        self.open_calls: list[ToolCall] = []
        """Calls without a result."""
        self.stale_ids: set[str] = set()
        """Ids of open calls for which a request has already sent a synthetic result, so that a real one is late."""
        self.sent_messages: list[bytes] | None = None
        """The messages of the last request."""
        self.is_answered = True
        self.may_differ = False
        """Whether something happened since the last request that may change the messages sent before."""
        self.extended_state = ConversationState()
        """The state of the branch, extended entry by entry."""
        self.known_ids: list[str] = []


class SessionMachine(RuleBasedStateMachine):
    """Append messages, send requests, answer, undo, fork, change models and reopen the store, in any order."""

    location = ":memory:"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY_FOLDER)
        self.store: SessionStore = self.open_store()
        self.checked_log: list[Entry] = []
        self.messages_by_id: dict[str, Message] = {}
        self.call_count = self.check_count = 0

    def open_store(self) -> SessionStore:
        """Open the store."""
        return open_store(self.location if self.location == ":memory:" else Path(self.folder.name) / self.location)

    def teardown(self) -> None:
        """Close and delete the store."""
        self.store.close()
        self.folder.cleanup()

    @initialize(
        kind=st.integers(0, len(POLICIES) - 1),
        model_index=st.integers(0, len(MODELS) - 1),
        system=st.booleans(),
        steps=st.integers(0, 4),
        size=sizes,
    )
    def begin(self, kind: int, model_index: int, system: bool, steps: int, size: int) -> None:
        """Start a session and take a few steps."""
        self.policy, window = POLICIES[kind]
        self.targets = [get_target(*model, window=window, setup=RequestSetup("f", 200)) for model in MODELS]
        self.branches = [Branch(Journal.open(self.store, SAMPLE_KEY, self.policy), model_index)]
        self.branch = self.branches[0]
        if system:
            self.append_message(Message.from_text("system", "You write code."))
        self.append_message(Message.from_text("user", "Go."))
        self.take_steps(steps, kind, size, "warm")

    # -- the machine's record ------------------------------------------------------------------------------------------

    def append_message(self, message: Message) -> None:
        """Append a message to the current branch."""
        (id_,) = self.branch.journal.append(message)
        self.messages_by_id[id_] = message

    def read_log(self) -> list[Entry]:
        """Return the log of the current branch."""
        return self.store.read_path(SAMPLE_KEY, self.branch.journal.leaf)

    def build_state(self) -> ConversationState:
        """Return the state of the current branch, folded at once from its log."""
        return ConversationState.from_entries(self.read_log())

    def plan_next(self, state: ConversationState, model_index: int) -> Plan:
        """Return a plan that is not executed; the whole log is folded if the plan needs compacted turns."""
        try:
            return plan_request(state, self.targets[model_index], self.policy)
        except LookupError:
            return plan_request(self.build_state(), self.targets[model_index], self.policy)

    # -- rules ---------------------------------------------------------------------------------------------------------

    @rule(seed=seeds, size=sizes, has_picture=st.booleans())
    def append_user_message(self, seed: int, size: int, has_picture: bool) -> None:
        """Append a user message, whether or not calls are open."""
        self.append_message(Message("user", (Text(make_text(seed, size)), *([PICTURE] if has_picture else []))))
        self.branch.may_differ |= (
            any(call.signature is None for call in self.branch.calls) and self.branch.model_index == GEMINI
        )

    @precondition(lambda self: self.build_state().history.messages[-1].role != "assistant")
    @rule(inputs_name=st.sampled_from(["warm", "warm", "warm", "cold", "forced", "full"]))
    def send_request(self, inputs_name: str) -> None:
        """Prepare a request and check it against the previous one."""
        branch, target = self.branch, self.targets[self.branch.model_index]
        state_before = self.build_state()
        prepared = branch.journal.prepare_request(target, INPUTS[inputs_name])
        plan, sent = prepared.plan, list_wire_messages(target, prepared.messages)
        if prepared.request_id in {entry.id for entry in self.checked_log}:
            assert branch.sent_messages in (None, sent), "a retry is the same request"
            return
        self.check_valid(target, plan, prepared.messages)
        self.check_texts(state_before, plan)
        if inputs_name == "full":
            assert plan.blobs == ()
        rules_on_seen = {edit.rule for edit in plan.record if edit.span.start < state_before.last_request.seen_count}
        has_new_decision = bool(rules_on_seen) or plan.compaction is not None
        assert "spill" not in rules_on_seen, "a result that was seen whole is never spilled"
        if rules_on_seen == {"prune"} and self.policy.settings.prune.when == ("cold", "broken"):
            assert inputs_name == "cold" or branch.sent_messages is None or plan.compaction, "edit-when-broken-anyway"
        if branch.sent_messages is not None and not (has_new_decision or branch.may_differ):
            unchanged = branch.sent_messages if branch.is_answered else branch.sent_messages[:-1]
            assert sent[: len(unchanged)] == unchanged, "prefix-only-grows"
        branch.sent_messages, branch.may_differ, branch.is_answered = sent, False, False
        branch.stale_ids |= {call.id for call in branch.open_calls}

    @precondition(lambda self: not self.branch.is_answered)
    @rule(calls=st.integers(0, 3), seed=seeds, has_thinking=st.booleans(), tokens=st.sampled_from([0.9, 1.0, 1.3]))
    def record_answer(self, calls: int, seed: int, has_thinking: bool, tokens: float) -> None:
        """Record an answer, with thinking and calls."""
        branch = self.branch
        api = MODELS[branch.model_index][0]
        parts: list[Part] = []
        if has_thinking and api != "openai-responses":
            parts.append(
                Thinking("hm", ProviderSignature(api, "", "reasoning_content" if api == "openai-chat" else "c2ln"))
            )
        if not calls or seed % 2:
            parts.append(Text(make_text(seed, 50)))
        signature = ProviderSignature(api, "", "c2ln") if api == "gemini" else None
        new_calls = [
            ToolCall(f"call_{self.call_count + n}", "read", f'{{"path":"{seed}"}}', signature) for n in range(calls)
        ]
        self.call_count += calls
        message = Message("assistant", (*parts, *new_calls))
        usage = Usage(int(tokens * max(1, branch.journal.state.last_request.tokens)), 20)
        self.messages_by_id[branch.journal.record_answer(message, usage)] = message
        branch.open_calls, branch.is_answered = [*branch.open_calls, *new_calls], True
        branch.calls += new_calls

    @precondition(lambda self: self.branch.open_calls)
    @rule(number=st.integers(1, 3), seed=seeds, size=sizes, is_split=st.booleans(), newest_first=st.booleans())
    def append_results(self, number: int, seed: int, size: int, is_split: bool, newest_first: bool) -> None:
        """Append tool results, in one message or several, some of them late."""
        branch = self.branch
        answered_calls = branch.open_calls[-number:] if newest_first else branch.open_calls[:number]
        pictures = (PICTURE,) if seed % 5 == 0 else ()
        parts = [
            ToolResult(call.id, call.name, (Text(make_text(seed + n, size)), *pictures), is_error=seed % 7 == 0)
            for n, call in enumerate(answered_calls)
        ]
        for message in [Message("tool", (part,)) for part in parts] if is_split else [Message("tool", tuple(parts))]:
            self.append_message(message)
        branch.open_calls = [call for call in branch.open_calls if call not in answered_calls]
        branch.may_differ |= any(call.id in branch.stale_ids for call in answered_calls) or not self.is_next(
            answered_calls
        )

    def is_next(self, calls: list[ToolCall]) -> bool:
        """Return whether only results are between these calls and their results."""
        newest = next(
            message for message in reversed(self.build_state().history.messages.slice()) if message.role != "tool"
        )
        return all(call in newest.calls for call in calls)

    @rule(steps=st.integers(1, 4), seed=seeds, size=sizes, inputs_name=st.sampled_from(["warm", "cold", "forced"]))
    def take_steps(self, steps: int, seed: int, size: int, inputs_name: str) -> None:
        """Take a few steps as an agent does: request, answer, results."""
        if self.branch.open_calls or self.build_state().history.messages[-1].role == "assistant":
            self.append_user_message(seed, 60, has_picture=False)
        for step in range(steps):
            self.send_request(inputs_name if step == 0 else "warm")
            self.record_answer(1 + (seed + step) % 3, seed, has_thinking=seed % 3 == 0, tokens=1.0)
            self.append_results(3, seed + step, size, is_split=step % 2 == 0, newest_first=False)

    @precondition(lambda self: self.build_state().view.active_decisions)
    @rule(pick=picks)
    def undo(self, pick: int) -> None:
        """Revoke the newest decision, or any."""
        active_ids = [id_ for id_, _ in self.build_state().view.active_decisions]
        chosen = active_ids[pick % len(active_ids)] if pick % 2 else None
        assert self.branch.journal.undo(chosen) == (chosen or active_ids[-1])
        self.branch.may_differ = True

    @precondition(lambda self: self.build_state().view.active_decisions)
    @rule(pick=picks)
    def undo_and_restore(self, pick: int) -> None:
        """Revoke a decision and restore it: the request is the one from before, and so is what may be planned."""
        state_before = self.build_state()
        active_ids = [id_ for id_, _ in state_before.view.active_decisions]
        chosen = active_ids[pick % len(active_ids)]
        self.branch.journal.undo(chosen)
        assert self.branch.journal.restore_decisions(None) == [chosen]
        restored = self.build_state()
        assert build_projection(restored) == build_projection(state_before)
        assert restored.view.active_decisions == state_before.view.active_decisions
        assert count_protected_parts(restored) == count_protected_parts(state_before)
        assert restored.view.shown_tokens == state_before.view.shown_tokens
        self.branch.may_differ = True

    @precondition(lambda self: self.build_state().view.revoked_decisions)
    @rule(pick=picks)
    def restore(self, pick: int) -> None:
        """Put an undone decision in force again: the last one, or any."""
        undone_ids = [revoked.id for revoked in self.build_state().view.revoked_decisions]
        chosen = undone_ids[pick % len(undone_ids)] if pick % 2 else None
        assert self.branch.journal.restore_decisions(chosen) == [chosen or undone_ids[-1]]
        self.branch.may_differ = True

    @precondition(lambda self: len(self.branches) < 4)
    @rule(pick=picks)
    def fork(self, pick: int) -> None:
        """Continue after an older entry, beside the current branch."""
        path = self.read_log()
        entry = path[pick % len(path)]
        state = ConversationState.from_entries(path[: pick % len(path) + 1])
        if all(message.role == "system" for message in state.history.messages):
            return
        journal = self.branch.journal.fork_at(entry.id)
        assert journal.leaf == entry.id
        assert is_same_request(journal.state, state)
        self.add_branch(journal, state)

    @precondition(lambda self: len(self.branches) < 4)
    @rule(pick=picks, limit=st.sampled_from([200, 1_000]))
    def truncate(self, pick: int, limit: int) -> None:
        """Copy the branch with shortened results; the old branch stays."""
        path = self.read_log()
        replacements = {entry.id: shorter for entry in path if (shorter := shorten_results(entry, limit)) is not None}
        if not replacements:
            return
        chosen = dict(list(replacements.items())[pick % len(replacements) :])
        leaf = self.store.copy_branch(SAMPLE_KEY, chosen, self.branch.journal.leaf)
        copy = self.store.read_path(SAMPLE_KEY, leaf)
        messages_before = [entry for entry in path if isinstance(entry.body, MessageEntry)]
        messages_after = [entry for entry in copy if isinstance(entry.body, MessageEntry)]
        for old, new in zip(messages_before, messages_after, strict=True):
            assert new.body.sized_message.message == chosen.get(old.id, old.body.sized_message.message)
            self.messages_by_id.setdefault(new.id, new.body.sized_message.message)
        journal = Journal.open(self.store, SAMPLE_KEY, self.policy, leaf=leaf)
        self.add_branch(journal, ConversationState.from_entries(copy))

    def add_branch(self, journal: Journal, state: ConversationState) -> None:
        """Add a branch and make it the current one."""
        branch = Branch(journal, self.branch.model_index)
        answered_ids = {result.call_id for message in state.history.messages for result in message.results}
        branch.calls = [call for message in state.history.messages for call in message.calls]
        branch.open_calls = [call for call in branch.calls if call.id not in answered_ids]
        branch.stale_ids = {call.id for call in branch.open_calls}
        self.branches.append(branch)
        self.branch = branch

    @precondition(lambda self: len(self.branches) > 1)
    @rule(pick=picks)
    def change_branch(self, pick: int) -> None:
        """Continue another branch."""
        self.branch = self.branches[pick % len(self.branches)]

    @rule(step=st.integers(1, len(MODELS) - 1))
    def change_model(self, step: int) -> None:
        """Send the next requests to another model or API."""
        self.branch.model_index, self.branch.sent_messages = (self.branch.model_index + step) % len(MODELS), None

    @rule()
    def reload(self) -> None:
        """same-after-restart: reopen the session as another process would; the next requests have the same bytes."""
        before = [self.list_next_messages(branch) for branch in self.branches]
        if self.location != ":memory:":
            self.store.close()
            self.store = self.open_store()
        for branch in self.branches:
            branch.journal = Journal.open(self.store, SAMPLE_KEY, self.policy, leaf=branch.journal.leaf)
        assert before == [self.list_next_messages(branch) for branch in self.branches]

    def list_next_messages(self, branch: Branch) -> list[bytes]:
        """Return the messages of the branch's next request."""
        current, self.branch = self.branch, branch
        plan = self.plan_next(branch.journal.state, branch.model_index)
        self.branch = current
        return list_wire_messages(self.targets[branch.model_index], build_messages_to_send(plan))

    # -- checks --------------------------------------------------------------------------------------------------------

    def check_valid(self, target: Target, plan: Plan, sized_messages: Sequence[SizedMessage]) -> None:
        """valid-request: check that the API accepts the request."""
        if sized_messages:
            found = validate_request(
                build_request_body(target.api, target.model, sized_messages, options=plan.options), target.api
            )
            errors = [finding for finding in found if finding.level == "error" and finding.rule not in OPTIONS]
            assert errors == [], f"valid-request: {target.api} {target.model}"

    def check_texts(self, state_before: ConversationState, plan: Plan) -> None:
        """nothing-lost: check that the text of each replacement can be read back unchanged."""
        for edit in (*plan.record, *(plan.compaction.edits if plan.compaction else ())):
            if edit.blob_hash and edit.span.part is not None:
                part = state_before.history.messages[edit.span.start].parts[edit.span.part]
                text = get_result_text(part) if isinstance(part, ToolResult) else part.text  # type: ignore[union-attr]
                assert self.store.blobs.read_text(edit.blob_hash) == text

    @invariant()
    def check_all(self) -> None:
        """Check everything below after each step."""
        if self.messages_by_id:
            self.check_log_only_grows()
            self.check_fold_laws()
            self.check_next_request_on_an_api()

    def check_log_only_grows(self) -> None:
        """nothing-lost: check that entries never change, and that each message is logged or its text is stored."""
        entries = self.store.read_entries(SAMPLE_KEY)
        assert entries[: len(self.checked_log)] == self.checked_log
        positions = {entry.id: number for number, entry in enumerate(entries)}
        for entry in entries[len(self.checked_log) :]:
            if (
                isinstance(entry.body, MessageEntry)
                and entry.body.sized_message.message != self.messages_by_id[entry.id]
            ):
                note = entries[positions[entry.parent or ""]].body
                assert isinstance(note, NoteEntry)
                assert note.reason == NOTE_CAPPED
                stored_texts = {self.store.blobs.read_text(hash_) for hash_ in note.data["blobs"]}
                assert stored_texts <= set(list_texts(self.messages_by_id[entry.id]))
                assert (
                    set(list_texts(self.messages_by_id[entry.id])) - set(list_texts(entry.body.sized_message.message))
                    <= stored_texts
                )
        assert self.messages_by_id.keys() <= positions.keys()
        self.checked_log = entries

    def check_fold_laws(self) -> None:
        """Check that extending the state entry by entry, folding at once, opening the store and the journal agree."""
        branch, path = self.branch, self.read_log()
        state_from_log = ConversationState.from_entries(path)
        assert [entry.id for entry in path[: len(branch.known_ids)]] == branch.known_ids
        for entry in path[len(branch.known_ids) :]:
            branch.extended_state = apply_entry(branch.extended_state, entry)
        branch.known_ids = [entry.id for entry in path]
        assert describe_state(branch.extended_state) == describe_state(state_from_log)
        assert state_from_log.view.shown_tokens == sum(sized.tokens for sized in build_projection(state_from_log))
        assert is_same_request(self.store.open_state(SAMPLE_KEY, branch.journal.leaf), state_from_log)
        assert is_same_request(branch.journal.state, state_from_log)
        # The newest word about a decision counts.
        is_restored_by_id = {
            entry.body.revoked_id: entry.body.is_restored for entry in path if isinstance(entry.body, RevokeEntry)
        }
        revoked_ids = {id_ for id_, is_restored in is_restored_by_id.items() if not is_restored}
        decision_ids = [entry.id for entry in path if isinstance(entry.body, DecisionEntry | CompactionEntry)]
        assert [id_ for id_, _ in state_from_log.view.active_decisions] == [
            id_ for id_ in decision_ids if id_ not in revoked_ids
        ]

    def check_next_request_on_an_api(self) -> None:
        """valid-request: check that the next request is valid, on each API in turn."""
        self.check_count += 1
        model_index = self.check_count % len(MODELS)
        plan = self.plan_next(self.branch.journal.state, model_index)
        self.check_valid(self.targets[model_index], plan, build_messages_to_send(plan))


def count_protected_parts(state: ConversationState) -> dict[int, Counter[int | None]]:
    """Return how often each part is protected; the order of the marks means nothing."""
    return {index: Counter(parts) for index, parts in state.view.protected_parts.items()}


def list_wire_messages(target: Target, sized_messages: Sequence[SizedMessage]) -> list[bytes]:
    """Return the elements of the request's list of messages, byte for byte, without cache breakpoints."""
    fields = FIELDS.decode(build_request_body(target.api, target.model, sized_messages))
    return [bytes(raw) for raw in ELEMENTS.decode(fields[get_api_spec(target.api).messages_field])]


def shorten_results(entry: Entry, limit: int) -> Message | None:
    """Return the message of an entry with its results cut to ``limit`` characters, or None if none is longer."""
    return truncate_entry_messages([entry], ResultLimits(limit)).get(entry.id)


def list_texts(message: Message) -> list[str]:
    """Return the texts of a message, one by one."""
    parts = [inner for part in message.parts for inner in (part.content if isinstance(part, ToolResult) else (part,))]
    return [inner.text for inner in parts if isinstance(inner, Text)]


def describe_state(state: ConversationState) -> dict[str, object]:
    """Return everything that a state has derived from its log."""
    return asdict(state) | {
        "callers": {
            id_: index
            for id_, index in state.history.first_index_by_call_id.items()
            if index < len(state.history.sized_messages)
        }
    }


class StoredMachine(SessionMachine):
    """The same machine with a store on disk."""

    location = "agent.db"


@pytest.mark.counts
@pytest.mark.parametrize("machine", [SessionMachine, StoredMachine])
def test_session_keeps_its_guarantees_after_every_operation(machine: type[SessionMachine]) -> None:
    """nothing-lost, prefix-only-grows, same-after-restart, valid-request and the fold law hold after every step of any
    sequence, in memory and on disk.
    """
    run_state_machine_as_test(machine, settings=STEPS)  # type: ignore[no-untyped-call]
