"""Compaction as a run drives it: who is asked, who is not, and what the others wait for."""

from __future__ import annotations

import pytest
from long_conversation import talk
from sample_entries import SAMPLE_KEY

from holdfast import events
from holdfast.cli.reports.account import compute_savings_and_state
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
GOALS = {api: get_target(api, model, window=WINDOW) for api, model in
         {"anthropic": "claude-opus-5-5", "openai-responses": "gpt-5.5"}.items()}  # fmt: skip


def done(work, *, notes, said=(), api="anthropic", window=200_000, aim=None, **more):
    """Return what ``work`` returns of a session with so many notes, what was sent, and what happened."""
    upstream, heard = (
        ProviderUpstream(Provider(ProviderSettings(window=window), [ScriptedAnswer(one) for one in said])),
        [],
    )

    async def go():
        fields = {"max_tokens": 500} if api == "anthropic" else {}
        opened = Engine.open(
            MemoryStore(), upstream=upstream, target=aim or GOALS[api], fields=fields, listen=heard.append, **more
        )
        async with opened as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk(notes))
            return await work(session)

    return run_on_fake_clock(go), upstream.sent, heard


def cancelling(*_):
    """Cancel whatever is to be compacted."""
    return BeforeCompactionResult(cancel=True)


def test_what_a_hook_cancels_does_not_happen_where_the_request_goes_without():
    """Nobody writes, no extract is made either, and the request shows all that was said."""

    async def ask(session):
        await session.ask("And now?")
        return session.journal.state.view.compaction

    plain, _, _ = done(ask, notes=64)
    cancelled, sent, _ = done(ask, notes=64, hooks=Hooks(before_compaction=cancelling))
    assert plain is not None
    assert cancelled is None
    assert b"Note 0:" in sent[-1].body


def test_who_asks_for_a_compaction_that_a_hook_cancels_is_told_so():
    """It is not that there was nothing to compact."""

    async def compact(session):
        return await session.compact()

    told, sent, heard = done(compact, notes=20, hooks=Hooks(before_compaction=cancelling))
    assert (told.outcome, sent) == ("cancelled", [])
    (heard_of,) = [event for event in heard if isinstance(event, events.CompactionEnded)]
    assert (heard_of.outcome, heard_of.author, heard_of.tokens_before) == ("cancelled", told.author, told.tokens_before)
    assert (told.author, told.tokens_before == told.tokens_after > 5_000) == ("extract", True)
    assert told.why == heard_of.why == "the hook before_compaction cancelled it"


def test_nothing_is_said_of_failures_where_a_hook_cancelled():
    """The reason that is known is told: a breaker that is open is another one, and is counted as such."""

    async def ask(session):
        await session.ask("And now?")

    _, _, heard = done(ask, notes=64, hooks=Hooks(before_compaction=cancelling))
    noticed = [(event.rule, event.why) for event in heard if isinstance(event, events.NoticeGiven)]
    assert ("cancelled", "the hook before_compaction cancelled it") in noticed
    assert "breaker" not in [rule for rule, _ in noticed]


@pytest.mark.parametrize(
    ("summary", "told"),
    [
        ("words and more " * 40_000, [("not_smaller", "hook"), ("compacted", "extract")]),
        (" \n ", [("compacted", "extract")]),
    ],
    ids=["too long", "blank"],
)
def test_who_wrote_what_came_to_nothing_is_told(summary, told):
    """A hook's summary that is too long is the hook's; one without a word is none."""

    async def compact(session):
        return await session.compact()

    made, _, heard = done(
        compact, notes=20, hooks=Hooks(before_compaction=lambda *_: BeforeCompactionResult(summary=summary))
    )
    assert made.author == "extract"
    assert [(event.outcome, event.author) for event in heard if isinstance(event, events.CompactionEnded)] == told


def test_what_is_decided_with_a_compaction_is_told_too():
    """A result that is spilled by the way is an event of its own: both together are what the log took."""
    call, result = ToolCall("c", "Read"), ToolResult("c", "Read", (Text("a line of a log\n" * 9_000),))

    async def compact(session):
        await session.append("Read it.", Message("assistant", (call,)), Message("tool", (result,)))
        before = session.report().tokens
        await session.compact()
        return before, session.report().tokens, session.journal.state.view.active_decisions

    (before, after, law), _, heard = done(compact, notes=20)
    compacted, decided = (one for one in heard if isinstance(one, events.EditsDecided | events.CompactionEnded))
    assert [type(what) for _, what in law] == [DecisionEntry, CompactionEntry]
    assert (decided.rule, decided.edit_count, decided.saves) == ("spill", 1, law[0][1].edits[0].saves)
    assert compacted.tokens_after == after < compacted.tokens_before < before


@pytest.mark.parametrize(
    ("says", "by"),
    [(None, "extract"), (BeforeCompactionResult(summary="All was kelp. " * 20), "hook")],
    ids=["nothing", "a summary"],
)
def test_a_compaction_is_told_when_it_begins_whoever_writes(says, by):
    """Also where a hook stands before it and no model writes: each that ended had begun. The log says who wanted it."""

    async def compact(session):
        await session.compact()
        return session.journal.state.view.compaction.trigger

    trigger, _, heard = done(compact, notes=20, hooks=Hooks(before_compaction=lambda *_: says))
    told = [
        (type(event), event.author)
        for event in heard
        if isinstance(event, events.CompactionStarted | events.CompactionEnded)
    ]
    assert told == [(events.CompactionStarted, by), (events.CompactionEnded, by)]
    assert trigger == "manual"


def test_a_hook_is_called_before_compactions_alone():
    """A hook that writes nothing is called as often as something is compacted, and each beginning has its end."""
    called = []

    async def ask(session):
        for _ in range(24):
            await session.append(*talk(2))
            await session.ask("And now?")

    _, _, heard = done(ask, notes=30, hooks=Hooks(before_compaction=lambda _, reason: called.append(reason)))
    told = [type(event) for event in heard if isinstance(event, events.CompactionStarted | events.CompactionEnded)]
    assert told == [events.CompactionStarted, events.CompactionEnded] * len(called)
    assert called


def test_a_prompt_of_a_hook_is_not_for_the_provider():
    """Who has words of their own wants a writer that reads them: the provider's own compaction is left out."""

    async def compact(session):
        return await session.compact()

    hooks = Hooks(before_compaction=lambda *_: BeforeCompactionResult(prompt="Tell it as you like."))
    options = {"notes": 40, "api": "openai-responses", "native": True, "summary_model": "gpt-5.5"}
    plain, sent, _ = done(compact, said=[SUMMARY], **options)
    assert (plain.author, sent[0].endpoint) == ("native", "compact")
    told, sent, _ = done(compact, said=[SUMMARY], hooks=hooks, **options)
    assert (told.author, sent[0].endpoint) == ("model", "generate")


@pytest.mark.parametrize("seconds", [0, 10_000], ids=["warm", "cold"])
def test_the_last_request_is_gone_on_with_only_while_it_is_cached(seconds):
    """Behind the last request a summary costs little as long as the provider holds it; later text alone costs less."""
    now = [1_000_000]

    async def work(session):
        session.resources.clock = lambda: now[0]
        session.journal._clock = lambda: now[0]
        await session.ask("And now?")
        now[0] += 1_000 * seconds
        return await session.compact()

    made, sent, _ = done(
        work, notes=20, said=["yes", SUMMARY, SUMMARY], api="openai-responses", summary_model="gpt-5.5"
    )
    assert made.author == "model"
    assert sent[1].body.startswith(sent[0].body[:2_000]) is (seconds == 0)


@pytest.mark.parametrize(("hour", "cache"), [(0, "cold"), (400, "warm")])
def test_what_was_cached_for_an_hour_is_warm_so_long(hour, cache):
    """Twenty minutes later a usual cache is gone, and nothing that was written for an hour."""
    now = [1_000_000]

    async def work(session):
        session.journal._clock = lambda: now[0]
        session.journal.prepare_request(GOALS["anthropic"])
        usage = Usage(20_000, 5, cache_write=500, cache_write_1h=hour)
        session.journal.record_answer(Message.from_text("assistant", "Yes."), usage)
        now[0] += 1_200_000
        return make_runtime_plan_inputs(
            session._runtime, build_template_from_fields(GOALS["anthropic"], {})
        ).cache_state

    assert done(work, notes=20)[0] == cache


def test_an_overflow_step_asks_nobody_for_a_summary():
    """Results that are cut, and the smallest request, need no model: what stands for older turns is an extract."""

    async def ask(session):
        await session.ask("And now?")

    policy = Policy().with_settings(recovery={"steps": ("truncate", "media", "fallback")})
    _, _, heard = done(ask, notes=20, window=6_000, summary_model="claude-opus-5-5", policy=policy)
    assert [event.overflow_step for event in heard if isinstance(event, events.ShrinkStarted)] == ["truncate"]
    assert {
        event.author for event in heard if isinstance(event, events.CompactionEnded | events.CompactionStarted)
    } == {"extract"}


def test_the_sessions_own_model_is_asked_within_the_window_that_is_known_of_it():
    """It writes summaries in the window that the session was told, not in the one that its model has elsewhere."""

    async def compact(session):
        return await session.compact()

    aim = get_target("anthropic", "claude-opus-5-5", window=10_000)
    more = {"notes": 64, "said": [SUMMARY] * 9, "summary_model": "claude-opus-5-5", "aim": aim}
    made, sent, _ = done(compact, window=10_000, **more)
    assert made.outcome == "compacted"
    assert len(sent) > 1
    assert all(estimate_text_tokens(one.body.decode()) < 10_000 for one in sent)


@pytest.mark.parametrize(
    ("said", "calls", "options"),
    [
        ([SUMMARY], 1, {}),
        (["I cannot.", SUMMARY], 2, {}),
        (["no"] * 9, 2, {}),
        ([], 1, {"api": "openai-responses", "native": True}),
    ],
    ids=["written", "refused once", "never accepted", "by the provider"],
)
def test_what_summaries_cost_is_in_the_log(said, calls, options):
    """Every call that was answered is noted with its model and usage, and ``stats`` counts its tokens and dollars."""

    async def compact(session):
        await session.compact()
        return session.resources.store, session.resources.upstream.provider.requests

    model = "gpt-5.5" if options else "claude-haiku-4-5"
    (store, requests), _, _ = done(compact, notes=40, said=said, summary_model=model, **options)
    noted = [call for entry in store.read_path(SAMPLE_KEY) if (call := read_summary_cost_note(entry.body)) is not None]
    assert (len(noted), {call.model for call in noted}) == (calls, {model})
    assert [call.usage.input for call in noted] == [one.tokens for one in requests]
    told = compute_savings_and_state(
        SAMPLE_KEY, store.read_path(SAMPLE_KEY), store.get_session(SAMPLE_KEY).leaf_id, load_shipped_catalog()
    )[0]
    assert told.dollars == pytest.approx(
        sum(compute_cost(one.usage, load_shipped_catalog().get_prices(one.api, model)) for one in noted)
    )
    assert (told.answers, told.input) == (0, sum(one.tokens for one in requests))
    assert told.dollars > 0


@pytest.mark.parametrize("asks", [1, 3])
@pytest.mark.parametrize("factor", [0.8, 1.35])
def test_what_a_compaction_says_is_left_the_report_says_too(factor, asks):
    """Before and behind it there is one measure, also where a count told how large system and tools are."""

    async def work():
        upstream = ProviderUpstream(Provider(ProviderSettings(factor=factor)))
        fields = {"max_tokens": 500, "system": "Kelp grows on rock; you answer who asks about it. " * 200}
        async with Engine.open(MemoryStore(), upstream=upstream, target=GOALS["anthropic"], fields=fields) as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk(20))
            for _ in range(asks):
                await session.ask("And now?")
            before = session.report()
            made = await session.compact()
            return before, made, session.report()

    before, made, after = run_on_fake_clock(work)
    assert (made.tokens_before, made.tokens_after) == (before.tokens, after.tokens)
    assert before.setup_tokens == after.setup_tokens


# -- beside somebody else ----------------------------------------------------------------------------------------------


def beside(tmp_path, work, say_more=lambda _: None):
    """Return what ``work`` returns of a session with a large past, and what its file says then.

    ``say_more`` is called while a summary is made; what it is given says something as another process does.
    """
    place, upstream = tmp_path / "store.db", ProviderUpstream(Provider())

    def theirs():
        with open_store(place) as there:
            Journal.open(there, SAMPLE_KEY).append(Message.from_text("user", "Theirs."))

    def summary(*_):
        say_more(theirs)
        return BeforeCompactionResult(summary="All was kelp. " * 20)

    async def go():
        hooks, fields = Hooks(before_compaction=summary), {"max_tokens": 500}
        opened = Engine.open(place, upstream=upstream, target=GOALS["anthropic"], fields=fields, hooks=hooks)
        async with opened as engine:
            session = await engine.session(SAMPLE_KEY)
            await session.append(*talk(20))
            return await work(session, theirs)

    told = run_on_fake_clock(go)
    with open_store(place) as there:
        return told, there.open_state(SAMPLE_KEY), len(there.read_tips(SAMPLE_KEY))


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_compaction_holds_where_others_went_on(tmp_path, when):
    """What others said meanwhile is behind the summary on one branch: nothing told as done stands beside the session.

    However often they say something while a summary is made, it is asked for once.
    """
    calls = []

    async def work(session, theirs):
        if when == "before":
            theirs()
        return await session.compact(), session.report()

    def more(theirs):
        calls.append(when)
        if when == "during":
            theirs()

    (made, report), branch, leaves = beside(tmp_path, work, more)
    assert (made.outcome, made.author, len(calls), leaves) == ("compacted", "hook", 1, 1)
    assert (branch.view.compaction is not None, branch.history.messages[-1].text) == (True, "Theirs.")
    assert (made.tokens_after, report.message_count) == (report.tokens, len(branch.history.sized_messages))


def test_who_wrote_what_is_in_force_is_told(tmp_path):
    """Where others compacted the same meanwhile a summary made for it is of no use: nobody is told that it is there."""

    def compacted():
        with open_store(tmp_path / "store.db") as there:
            journal, goal, world = (
                Journal.open(there, SAMPLE_KEY),
                GOALS["anthropic"],
                PlanInputs(force_compaction=True),
            )
            assert journal.write_decision(mark_compaction_manual(journal.plan_next(goal, world)), goal, world)

    async def work(session, _):
        return await session.compact()

    made, branch, _ = beside(tmp_path, work, lambda _: compacted())
    assert "All was kelp." not in branch.view.compaction.summary.text
    assert (made.author, branch.view.compaction.author) == ("extract", "")


def test_an_undo_holds_where_others_went_on(tmp_path):
    """What is told to be taken back is no longer in force for anybody."""

    async def work(session, theirs):
        await session.compact()
        theirs()
        await session.undo()

    _, branch, leaves = beside(tmp_path, work)
    assert (branch.view.active_decisions, branch.history.messages[-1].text, leaves) == ((), "Theirs.", 1)


@pytest.mark.parametrize("own", ["fork", "handed out"])
def test_a_branch_of_its_own_is_compacted_where_it_is(tmp_path, own):
    """A fork stays one, and so does a request that waits for its answer: others' words stand beside it."""

    async def work(session, theirs):
        mine = session
        if own == "fork":
            mine = await session.branch(session.journal.leaf)
        else:
            await mine.prepare()
        theirs()
        await mine.compact()
        return [message.text for message in mine.journal.state.history.messages], mine.journal.state.view.compaction

    (texts, made), branch, leaves = beside(tmp_path, work)
    assert (made is not None, "Theirs." in texts, branch.view.compaction, leaves) == (True, False, None, 2)
