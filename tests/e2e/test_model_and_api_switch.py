"""One session that changes model and API in the middle: the next model continues what the others left.

Every ordered pair of the four APIs, and both models of each, take turns on the same log, which is opened from disk each
time. The provider judges every request: signatures of another model or API are refused.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import permutations

import example_counts
import pytest
from agent_workday import make_request_fields
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolResult
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.calibration.token_estimate import get_calibrated_ratio
from holdfast.state.entries import CompactionEntry, MessageEntry
from holdfast.state.view import decode_native_summary
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import run_on_fake_clock as on_fake_clock
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import ModelAnswer, RefusalReply
from holdfast.testing.provider.calls import ScriptedAnswer as Says
from holdfast.testing.upstream import ProviderUpstream

WINDOW = 32_000
STEPS = 12
MODELS = {
    "anthropic": ("claude-opus-5-5", "claude-sonnet-5-5"),
    "openai-chat": ("gpt-5.5", "mistral-large-latest"),
    "openai-responses": ("gpt-5.5", "gpt-5-mini"),
    "gemini": ("gemini-3-pro", "gemini-3-flash"),
}
"""Two models of each API, with the strictest rules."""
PAIRS = [
    *[((api, model), (api, other_model)) for api, (model, other_model) in MODELS.items()],
    *[((api, MODELS[api][0]), (other_api, MODELS[other_api][0])) for api, other_api in permutations(MODELS, 2)],
]
NATIVE = [pair for pair in PAIRS if pair[0][0] in ("anthropic", "openai-responses")]
NATIVE = NATIVE if example_counts.IS_THOROUGH else NATIVE[:4]


def make_question(step):
    return f"Word {step} of the user: kelp number {step * 7_919 % 9_973} must not be lost."


def make_result(step):
    return "\n".join(
        f"{step} {line:>4}  part_{line * 31 % 97} = compute({line * 7_919 % 9_973})" for line in range(400)
    )


def iterate_script():
    """Yield the model's answers: two calls and a text for each step, with thinking each time."""
    for step in range(STEPS):
        yield Says(f"Step {step}.", (("read", {"path": f"a{step}.py"}), ("grep", {"path": "b"})), f"Where is {step}?")
        yield Says(f"Step {step} is done.", (), f"Done with {step}.")


async def run_step(session, number):
    """Run one step: a question, and results until there are no more calls."""
    answer = await session.ask(make_question(number))
    while answer.message.calls:
        results = [ToolResult(call.id, call.name, (Text(make_result(number)),)) for call in answer.message.calls]
        await session.append(Message("tool", tuple(results)))
        answer = await session.ask()


async def run_with_switches(store_path, provider, pair, *, each, native=False, compact=()):
    """Run all steps, ``each`` at a time with one of the pair, reopening the store; return the requests sent."""
    sent = []
    for first_step in range(0, STEPS, each):
        api, model = pair[first_step // each % len(pair)]
        upstream, target = ProviderUpstream(provider), get_target(api, model, window=WINDOW)
        fields = dict(make_request_fields(api))
        if target.dialect.max_tokens_field and "max_completion_tokens" in fields:
            fields[target.dialect.max_tokens_field] = fields.pop("max_completion_tokens")
        async with Engine.open(store_path, upstream=upstream, target=target, fields=fields, native=native) as engine:
            session = await engine.session(SAMPLE_KEY)
            for number in range(first_step, first_step + each):
                await run_step(session, number)
                if number in compact:
                    await session.compact()
        sent += upstream.sent
    return sent


def judge_requests(provider):
    """valid-request: no request was refused for another reason than its size."""
    for request in provider.requests:
        if isinstance(request.reply, RefusalReply):
            reply = request.reply
            report = ErrorReport("", reply.status, reply.code, reply.message, reply.body)
            assert classify_error(report).is_overflow, reply


def read_bodies(store_path, kind):
    with SqliteStore(store_path) as store:
        return [entry.body for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, kind)]


def judge_log(store_path):
    """nothing-lost: every question and result is in the log, once and in order, on one branch."""
    messages = [body.sized_message.message for body in read_bodies(store_path, MessageEntry)]
    assert [message.text for message in messages if message.role == "user"] == [
        make_question(number) for number in range(STEPS)
    ]
    assert sum(len(message.results) for message in messages) == 2 * STEPS
    with SqliteStore(store_path) as store:
        assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == len(messages)


def find_signatures(body):
    """Return all signatures and encrypted contents in a body."""
    return set(re.findall(rb'"(?:signature|encrypted_content|thoughtSignature)":"([^"]{60,})"', body))


def format_pair(pair):
    return " to ".join(f"{model} ({api})" for api, model in pair)


@pytest.mark.parametrize("pair", example_counts.mark_every_other_long(PAIRS), ids=format_pair)
def test_engine_continues_a_session_with_another_model_or_api(pair, tmp_path):
    """Whoever wrote the log, the next model accepts it: nothing is refused and no text is lost."""
    store_path, provider = tmp_path / "store.db", Provider(ProviderSettings(window=WINDOW), list(iterate_script()))
    on_fake_clock(partial(run_with_switches, store_path, provider, pair, each=2, compact=(5,)))
    judge_requests(provider)
    judge_log(store_path)
    assert all(isinstance(request.reply, ModelAnswer) for request in provider.requests)
    assert len(read_bodies(store_path, CompactionEntry)) >= 2


@pytest.mark.parametrize("pair", example_counts.mark_every_other_long(NATIVE), ids=format_pair)
def test_engine_sends_native_compactions_only_to_their_own_model(pair, tmp_path):
    """A native compaction is sent back unchanged to the model that made it; any other gets its readable summary."""
    store_path, provider = tmp_path / "store.db", Provider(ProviderSettings(window=WINDOW), list(iterate_script()))
    sent = on_fake_clock(partial(run_with_switches, store_path, provider, pair, each=3, native=True, compact=(1, 7)))
    judge_requests(provider)
    judge_log(store_path)
    native_summaries = [
        native
        for body in read_bodies(store_path, CompactionEntry)
        if (native := decode_native_summary(body)) is not None
    ]
    assert native_summaries
    for native in native_summaries:
        signatures = find_signatures(b"".join(map(bytes, native.items)))
        receivers = {
            (sent_request.api, sent_request.model)
            for sent_request in sent
            if signatures & find_signatures(sent_request.body)
        }
        assert receivers == {(native.api, native.model)}


async def run_steps(store_path, provider, target, numbers):
    """Run these steps with ``target``; return report and tokens per estimated token, before and after."""
    upstream = ProviderUpstream(provider)
    async with Engine.open(
        store_path, upstream=upstream, target=target, fields=make_request_fields(target.api)
    ) as engine:
        session = await engine.session(SAMPLE_KEY)
        report_before = session.report() if len(session.journal.state.history.sized_messages) else None
        scale = get_calibrated_ratio(session.journal.state, target)
        for number in numbers:
            await run_step(session, number)
        return report_before, scale, session.report(), get_calibrated_ratio(session.journal.state, target)


SWITCHES = [
    (("anthropic", "claude-opus-5-5"), ("anthropic", "claude-sonnet-5-5")),
    (("anthropic", "claude-opus-5-5"), ("gemini", "gemini-3-pro")),
    (("openai-chat", "gpt-5.5"), ("openai-responses", "gpt-5-mini")),
]


@pytest.mark.parametrize("pair", SWITCHES, ids=format_pair)
def test_engine_keeps_learned_limits_for_their_own_model(pair, tmp_path):
    """A window learned from an overflow, and the estimate's correction, belong to the model that was asked."""
    store_path, says = tmp_path / "store.db", list(iterate_script())
    first_target, second_target = (get_target(api, model, window=WINDOW) for api, model in pair)
    small, whole = (
        Provider(ProviderSettings(window=WINDOW // 2, factor=2.0), says),
        Provider(ProviderSettings(window=WINDOW), says),
    )
    first, second = (
        partial(run_steps, store_path, provider, goal)
        for provider, goal in ((small, first_target), (whole, second_target))
    )
    _, _, learned, scale = on_fake_clock(partial(first, range(3)))
    assert (learned.window, learned.window_source) == (WINDOW // 2, "learned")
    assert scale > 1.5
    report_before, initial_scale, report_after, final_scale = on_fake_clock(partial(second, range(3, 5)))
    assert (
        (report_before.window, report_before.window_source)
        == (report_after.window, report_after.window_source)
        == (WINDOW, second_target.limits.window_source)
    )
    assert initial_scale == pytest.approx(second_target.prior_ratio)
    assert final_scale < 1.5
    judge_requests(small)
    assert all(isinstance(request.reply, ModelAnswer) for request in whole.requests)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[0][0] != "openai-chat"], ids=format_pair)
def test_engine_restores_signatures_when_their_model_is_back(pair, tmp_path):
    """signed-bytes-intact: a signature is sent to the model that made it, byte for byte, and to no other; the log holds
    all of them. Thinking bound to its setup is dropped for good once another API was asked: that was another setup.
    """
    store_path, provider = tmp_path / "store.db", Provider(ProviderSettings(), list(iterate_script()))
    sent = []
    for number, (api, model) in enumerate((*pair, pair[0])):
        upstream = ProviderUpstream(provider)

        async def do_one_step(api=api, model=model, number=number, upstream=upstream):
            async with Engine.open(
                store_path, upstream=upstream, target=get_target(api, model), fields=make_request_fields(api)
            ) as engine:
                await run_step(await engine.session(SAMPLE_KEY), number)

        on_fake_clock(do_one_step)
        sent.append(upstream.sent)
    own = find_signatures(sent[0][-1].body)
    assert own
    assert all(own.isdisjoint(find_signatures(sent_request.body)) for sent_request in sent[1])
    returned = find_signatures(sent[2][0].body)
    is_bound_elsewhere = pair[0][0] == "anthropic" != pair[1][0]
    assert not returned if is_bound_elsewhere else own <= returned


@pytest.mark.parametrize("pair", [PAIRS[0], PAIRS[2], *SWITCHES[1:]], ids=format_pair)
def test_engine_fits_a_smaller_window_on_the_first_request(pair, tmp_path):
    """G3: the first request to a model with a sixth of the window fits it, and nothing is refused on the way."""
    store_path, says = tmp_path / "store.db", list(iterate_script())
    (api, model), (other_api, other_model) = pair
    provider, large = Provider(ProviderSettings(), says), get_target(api, model, window=200_000)
    _, _, report, _ = on_fake_clock(partial(run_steps, store_path, provider, large, range(8)))
    assert report.tokens > 1.5 * WINDOW
    provider.settings = ProviderSettings(window=WINDOW)
    on_fake_clock(
        partial(run_steps, store_path, provider, get_target(other_api, other_model, window=WINDOW), range(8, STEPS))
    )
    assert all(isinstance(request.reply, ModelAnswer) for request in provider.requests)
    judge_log(store_path)
