"""Compaction by a session: hooks, writers, events, costs, and other processes that write meanwhile."""

from __future__ import annotations

import pytest
from long_conversation import build_long_conversation
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.config import get_target, load_shipped_catalog
from holdfast.engine.compaction.compact import make_runtime_plan_inputs
from holdfast.engine.engine import Engine
from holdfast.engine.hooks import BeforeCompactionResult, Hooks
from holdfast.engine.log.journal import Journal
from holdfast.engine.request_template import build_template_from_fields
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.pipeline import Policy
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.reports.sessions.account import compute_savings_and_state
from holdfast.state.costs import compute_cost, read_summary_cost_note
from holdfast.state.entries import CompactionEntry, DecisionEntry, Usage
from holdfast.state.plan import mark_compaction_manual
from holdfast.state.target import PlanInputs
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.upstream import ProviderUpstream

WINDOW = 32_000
SUMMARY = (
    "\n".join(f"## {heading}\n- kelp on the rock, note 39, keep it all\n" for heading in SUMMARY_HEADINGS)
    + "word " * 200
)
TARGETS = {api: get_target(api, model, window=WINDOW) for api, model in
         {"anthropic": "claude-opus-5-5", "openai-responses": "gpt-5.5"}.items()}  # fmt: skip


def run_session(work, *, notes, script=(), api="anthropic", window=200_000, target=None, **options):
    """Run ``work`` on a session with ``notes`` turns; return its result, the requests and the events."""
    upstream, seen_events = (
        ProviderUpstream(Provider(ProviderSettings(window=window), [ScriptedAnswer(text) for text in script])),
        [],
    )

    async def run_scenario():
        fields = {"max_tokens": 500} if api == "anthropic" else {}
        opening = Engine.open(
            MemoryStore(),
            upstream=upstream,
            target=target or TARGETS[api],
            fields=fields,
            listen=seen_events.append,
            **options,
        )
        async with opening as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*build_long_conversation(notes))
            return await work(session)

    return run_on_fake_clock(run_scenario), upstream.sent, seen_events


def cancel_compaction(*_):
    """Cancel every compaction."""
    return BeforeCompactionResult(cancel=True)


def test_hook_cancels_a_compaction_that_the_request_can_do_without():
    """No summary and no extract is made, and the request shows the whole history."""

    async def ask(session):
        await session.ask("And now?")
        return session.journal.state.view.compaction

    plain, _, _ = run_session(ask, notes=64)
    cancelled, sent, _ = run_session(ask, notes=64, hooks=Hooks(before_compaction=cancel_compaction))
    assert plain is not None
    assert cancelled is None
    assert b"Note 0:" in sent[-1].body


def test_session_compact_reports_a_compaction_that_a_hook_cancelled():
    """The outcome is cancelled, not that there was nothing to compact."""

    async def compact(session):
        return await session.compact()

    result, sent, seen_events = run_session(compact, notes=20, hooks=Hooks(before_compaction=cancel_compaction))
    assert (result.outcome, sent) == ("cancelled", [])
    (ended,) = [event for event in seen_events if isinstance(event, events.CompactionEnded)]
    assert (ended.outcome, ended.author, ended.tokens_before) == ("cancelled", result.author, result.tokens_before)
    assert (result.author, result.tokens_before == result.tokens_after > 5_000) == ("extract", True)
    assert result.why == ended.why == "the hook before_compaction cancelled it"


def test_cancelled_compaction_gives_no_breaker_notice():
    """The notice gives the hook as the reason; the breaker is another reason."""

    async def ask(session):
        await session.ask("And now?")

    _, _, seen_events = run_session(ask, notes=64, hooks=Hooks(before_compaction=cancel_compaction))
    notices = [(event.rule, event.why) for event in seen_events if isinstance(event, events.NoticeGiven)]
    assert ("cancelled", "the hook before_compaction cancelled it") in notices
    assert not {"breaker", "compaction-paused"} & {rule for rule, _ in notices}


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ("words and more " * 40_000, [("not_smaller", "hook"), ("compacted", "extract")]),
        (" \n ", [("compacted", "extract")]),
    ],
    ids=["too long", "blank"],
)
def test_session_compact_names_the_author_of_a_failed_summary(summary, expected):
    """A hook's summary that is too long fails as the hook's; a blank one counts as none."""

    async def compact(session):
        return await session.compact()

    result, _, seen_events = run_session(
        compact, notes=20, hooks=Hooks(before_compaction=lambda *_: BeforeCompactionResult(summary=summary))
    )
    assert result.author == "extract"
    assert [
        (event.outcome, event.author) for event in seen_events if isinstance(event, events.CompactionEnded)
    ] == expected


def test_session_compact_reports_the_edits_decided_with_it():
    """A result spilled along with a compaction is an event of its own, and both events match the log."""
    call, result = ToolCall("c", "Read"), ToolResult("c", "Read", (Text("a line of a log\n" * 9_000),))

    async def compact(session):
        await session.append("Read it.", Message("assistant", (call,)), Message("tool", (result,)))
        before = session.report().tokens
        await session.compact()
        return before, session.report().tokens, session.journal.state.view.active_decisions

    (before, after, decisions), _, seen_events = run_session(compact, notes=20)
    compacted, decided = (
        event for event in seen_events if isinstance(event, events.EditsDecided | events.CompactionEnded)
    )
    assert [type(decision) for _, decision in decisions] == [DecisionEntry, CompactionEntry]
    assert (decided.rule, decided.edit_count, decided.saves) == ("spill", 1, decisions[0][1].edits[0].saves)
    assert compacted.tokens_after == after < compacted.tokens_before < before


@pytest.mark.parametrize(
    ("hook_result", "author"),
    [(None, "extract"), (BeforeCompactionResult(summary="All was kelp. " * 20), "hook")],
    ids=["nothing", "a summary"],
)
def test_compaction_started_event_precedes_every_end(hook_result, author):
    """Every ended compaction has started, also one written by a hook or an extract, and the log has its trigger."""

    async def compact(session):
        await session.compact()
        return session.journal.state.view.compaction.trigger

    trigger, _, seen_events = run_session(compact, notes=20, hooks=Hooks(before_compaction=lambda *_: hook_result))
    event_authors = [
        (type(event), event.author)
        for event in seen_events
        if isinstance(event, events.CompactionStarted | events.CompactionEnded)
    ]
    assert event_authors == [(events.CompactionStarted, author), (events.CompactionEnded, author)]
    assert trigger == "manual"


def test_before_compaction_hook_is_called_once_per_compaction():
    """A hook that returns nothing is called for each compaction, and each start event has its end."""
    reasons = []

    async def ask(session):
        for _ in range(24):
            await session.append(*build_long_conversation(2))
            await session.ask("And now?")

    _, _, seen_events = run_session(
        ask, notes=30, hooks=Hooks(before_compaction=lambda _, reason: reasons.append(reason))
    )
    event_types = [
        type(event) for event in seen_events if isinstance(event, events.CompactionStarted | events.CompactionEnded)
    ]
    assert event_types == [events.CompactionStarted, events.CompactionEnded] * len(reasons)
    assert reasons


def test_hook_prompt_is_answered_by_a_writer_instead_of_natively():
    """A prompt needs a writer that reads it, so the provider's own compaction is skipped."""

    async def compact(session):
        return await session.compact()

    hooks = Hooks(before_compaction=lambda *_: BeforeCompactionResult(prompt="Tell it as you like."))
    options = {"notes": 36, "api": "openai-responses", "native": True, "summary_model": "gpt-5.5"}
    plain, sent, _ = run_session(compact, script=[SUMMARY], **options)
    assert (plain.author, sent[0].endpoint) == ("native", "compact")
    with_prompt, sent, _ = run_session(compact, script=[SUMMARY], hooks=hooks, **options)
    assert (with_prompt.author, sent[0].endpoint) == ("model", "generate")


@pytest.mark.parametrize("seconds", [0, 10_000], ids=["warm", "cold"])
def test_session_compact_extends_the_last_request_only_while_cached(seconds):
    """Extending the last request is cheap while the provider caches it; afterwards plain text costs less."""
    now = [1_000_000]

    async def scenario(session):
        session.resources.clock = lambda: now[0]
        session.journal._clock = lambda: now[0]
        await session.ask("And now?")
        now[0] += 1_000 * seconds
        return await session.compact()

    result, sent, _ = run_session(
        scenario, notes=20, script=["yes", SUMMARY, SUMMARY], api="openai-responses", summary_model="gpt-5.5"
    )
    assert result.author == "model"
    assert sent[1].body.startswith(sent[0].body[:2_000]) is (seconds == 0)


@pytest.mark.parametrize(("hour_tokens", "cache"), [(0, "cold"), (400, "warm")])
def test_plan_inputs_keep_an_hour_cache_warm_for_an_hour(hour_tokens, cache):
    """After twenty minutes the default cache is cold, and one written for an hour is warm."""
    now = [1_000_000]

    async def scenario(session):
        session.journal._clock = lambda: now[0]
        session.journal.prepare_request(TARGETS["anthropic"])
        usage = Usage(20_000, 5, cache_write=500, cache_write_1h=hour_tokens)
        session.journal.record_answer(Message.from_text("assistant", "Yes."), usage)
        now[0] += 1_200_000
        return make_runtime_plan_inputs(
            session._runtime, build_template_from_fields(TARGETS["anthropic"], {})
        ).cache_state

    assert run_session(scenario, notes=20)[0] == cache


def test_overflow_steps_behind_compaction_use_an_extract():
    """The truncate and fallback steps need no model: an extract stands for older turns."""

    async def ask(session):
        await session.ask("And now?")

    policy = Policy().with_settings(recovery={"steps": ("truncate", "media", "fallback")})
    _, _, seen_events = run_session(ask, notes=20, window=6_000, summary_model="claude-opus-5-5", policy=policy)
    assert [event.overflow_step for event in seen_events if isinstance(event, events.ShrinkStarted)] == ["truncate"]
    assert {
        event.author for event in seen_events if isinstance(event, events.CompactionEnded | events.CompactionStarted)
    } == {"extract"}


def test_session_model_writes_summaries_within_the_session_window():
    """The summary requests fit the window configured for the session, not the model's usual one."""

    async def compact(session):
        return await session.compact()

    target = get_target("anthropic", "claude-opus-5-5", window=10_000)
    options = {"notes": 64, "script": [SUMMARY] * 9, "summary_model": "claude-opus-5-5", "target": target}
    result, sent, _ = run_session(compact, window=10_000, **options)
    assert result.outcome == "compacted"
    assert len(sent) > 1
    assert all(estimate_text_tokens(request.body.decode()) < 10_000 for request in sent)


@pytest.mark.parametrize(
    ("script", "calls", "options"),
    [
        ([SUMMARY], 1, {}),
        (["I cannot.", SUMMARY], 2, {}),
        (["no"] * 9, 2, {}),
        ([], 1, {"api": "openai-responses", "native": True}),
    ],
    ids=["written", "refused once", "never accepted", "by the provider"],
)
def test_summary_costs_are_recorded_and_counted(script, calls, options):
    """Every answered summary call is noted with model and usage, and ``stats`` counts its tokens and dollars."""

    async def compact(session):
        await session.compact()
        return session.resources.store, session.resources.upstream.provider.requests

    model = "gpt-5.5" if options else "claude-haiku-4-5"
    (store, requests), _, _ = run_session(compact, notes=40, script=script, summary_model=model, **options)
    calls_in_log = [
        call for entry in store.read_path(SAMPLE_KEY) if (call := read_summary_cost_note(entry.body)) is not None
    ]
    assert (len(calls_in_log), {call.model for call in calls_in_log}) == (calls, {model})
    assert [call.usage.input for call in calls_in_log] == [priced.tokens for priced in requests]
    savings = compute_savings_and_state(
        SAMPLE_KEY, store.read_path(SAMPLE_KEY), store.get_session(SAMPLE_KEY).leaf_id, load_shipped_catalog()
    )[0]
    assert savings.dollars == pytest.approx(
        sum(compute_cost(priced.usage, load_shipped_catalog().get_prices(priced.api, model)) for priced in calls_in_log)
    )
    assert (savings.answers, savings.input) == (0, sum(priced.tokens for priced in requests))
    assert savings.dollars > 0


@pytest.mark.parametrize("ask_count", [1, 3])
@pytest.mark.parametrize("factor", [0.8, 1.35])
def test_session_compact_measures_tokens_as_the_report_does(factor, ask_count):
    """Both use one measure before and after, also where usage taught the size of system prompt and tools."""

    async def scenario():
        upstream = ProviderUpstream(Provider(ProviderSettings(factor=factor)))
        fields = {"max_tokens": 500, "system": "Kelp grows on rock; you answer who asks about it. " * 200}
        async with Engine.open(MemoryStore(), upstream=upstream, target=TARGETS["anthropic"], fields=fields) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*build_long_conversation(20))
            for _ in range(ask_count):
                await session.ask("And now?")
            before = session.report()
            result = await session.compact()
            return before, result, session.report()

    before, result, after = run_on_fake_clock(scenario)
    assert (result.tokens_before, result.tokens_after) == (before.tokens, after.tokens)
    assert before.setup_tokens == after.setup_tokens


# -- with another process ----------------------------------------------------------------------------------------------


def run_with_other_process(tmp_path, work, write_during_summary=lambda _: None):
    """Run ``work`` on a session with a long history; return its result, the stored state and the number of leaves.

    ``write_during_summary`` is called while a summary is made, with a function that appends as another process does.
    """
    path, upstream = tmp_path / "store.db", ProviderUpstream(Provider())

    def append_by_other_process():
        with open_store(path) as other_store:
            Journal.open(other_store, SAMPLE_KEY).append(Message.from_text("user", "Theirs."))

    def summary(*_):
        write_during_summary(append_by_other_process)
        return BeforeCompactionResult(summary="All was kelp. " * 20)

    async def run_scenario():
        hooks, fields = Hooks(before_compaction=summary), {"max_tokens": 500}
        opening = Engine.open(path, upstream=upstream, target=TARGETS["anthropic"], fields=fields, hooks=hooks)
        async with opening as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*build_long_conversation(20))
            return await work(session, append_by_other_process)

    result = run_on_fake_clock(run_scenario)
    with open_store(path) as other_store:
        return result, other_store.open_state(SAMPLE_KEY), len(other_store.read_tips(SAMPLE_KEY))


@pytest.mark.parametrize("when", ["before", "during"])
def test_session_compact_keeps_messages_of_another_process_on_its_branch(tmp_path, when):
    """Messages that another process appends meanwhile follow the summary on the same branch.

    The summary is requested once, however often messages arrive while it is made.
    """
    calls = []

    async def scenario(session, append_by_other_process):
        if when == "before":
            append_by_other_process()
        return await session.compact(), session.report()

    def write_during_summary(append_by_other_process):
        calls.append(when)
        if when == "during":
            append_by_other_process()

    (result, report), branch, leaves = run_with_other_process(tmp_path, scenario, write_during_summary)
    assert (result.outcome, result.author, len(calls), leaves) == ("compacted", "hook", 1, 1)
    assert (branch.view.compaction is not None, branch.history.messages[-1].text) == (True, "Theirs.")
    assert (result.tokens_after, report.message_count) == (report.tokens, len(branch.history.sized_messages))


def test_session_compact_drops_a_summary_when_another_process_compacted(tmp_path):
    """The result names the author of the compaction in force, not of the summary that was dropped."""

    def compact_by_other_process():
        with open_store(tmp_path / "store.db") as other_store:
            journal, target, inputs = (
                Journal.open(other_store, SAMPLE_KEY),
                TARGETS["anthropic"],
                PlanInputs(force_compaction=True),
            )
            assert journal.write_decision(mark_compaction_manual(journal.plan_next(target, inputs)), target, inputs)

    async def scenario(session, _):
        return await session.compact()

    result, branch, _ = run_with_other_process(tmp_path, scenario, lambda _: compact_by_other_process())
    assert "All was kelp." not in branch.view.compaction.summary.text
    assert (result.author, branch.view.compaction.author) == ("extract", "")


def test_session_undo_applies_behind_messages_of_another_process(tmp_path):
    """After the undo no branch has the decision in force."""

    async def scenario(session, append_by_other_process):
        await session.compact()
        append_by_other_process()
        await session.undo()

    _, branch, leaves = run_with_other_process(tmp_path, scenario)
    assert (branch.view.active_decisions, branch.history.messages[-1].text, leaves) == ((), "Theirs.", 1)


@pytest.mark.parametrize("reason", ["fork", "handed out"])
def test_session_compact_stays_on_a_fork_or_a_pending_request(tmp_path, reason):
    """A fork, or a prepared request without an answer, is compacted on its own branch beside others' messages."""

    async def scenario(session, append_by_other_process):
        branch_session = session
        if reason == "fork":
            branch_session = await session.branch(session.journal.leaf)
        else:
            await branch_session.prepare()
        append_by_other_process()
        await branch_session.compact()
        state = branch_session.journal.state
        return [message.text for message in state.history.messages], state.view.compaction

    (texts, compaction), branch, leaves = run_with_other_process(tmp_path, scenario)
    assert (compaction is not None, "Theirs." in texts, branch.view.compaction, leaves) == (True, False, None, 2)
