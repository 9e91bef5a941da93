"""One session that changes model and API in mid-run: whoever is asked next takes what is left of it.

Every ordered pair of the four APIs, and both models of each, ask in turn behind the same log, which is opened anew from
disk each time. The provider judges every request: seals of another model, or of another API, are refused.
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
"""Two models of each API, of those that enforce most."""
PAIRS = [
    *[((api, one), (api, other)) for api, (one, other) in MODELS.items()],
    *[((one, MODELS[one][0]), (other, MODELS[other][0])) for one, other in permutations(MODELS, 2)],
]
NATIVE = [pair for pair in PAIRS if pair[0][0] in ("anthropic", "openai-responses")]
NATIVE = NATIVE if example_counts.IS_THOROUGH else NATIVE[:4]


def words(step):
    return f"Word {step} of the user: kelp number {step * 7_919 % 9_973} must not be lost."


def result(step):
    return "\n".join(
        f"{step} {line:>4}  part_{line * 31 % 97} = compute({line * 7_919 % 9_973})" for line in range(400)
    )


def script():
    """Yield what the model says: two calls and an answer for each step, thinking each time."""
    for step in range(STEPS):
        yield Says(f"Step {step}.", (("read", {"path": f"a{step}.py"}), ("grep", {"path": "b"})), f"Where is {step}?")
        yield Says(f"Step {step} is done.", (), f"Done with {step}.")


async def step(session, number):
    """Do one step: words of the user's, and calls until there are none."""
    answer = await session.ask(words(number))
    while answer.message.calls:
        results = [ToolResult(call.id, call.name, (Text(result(number)),)) for call in answer.message.calls]
        await session.append(Message("tool", tuple(results)))
        answer = await session.ask()


async def switched(place, provider, pair, *, each, native=False, compact=()):
    """Do all steps, ``each`` of a pair so many at a time, in a store opened anew; return what was sent."""
    sent = []
    for first in range(0, STEPS, each):
        api, model = pair[first // each % len(pair)]
        upstream, goal = ProviderUpstream(provider), get_target(api, model, window=WINDOW)
        async with Engine.open(
            place, upstream=upstream, target=goal, fields=make_request_fields(api), native=native
        ) as engine:
            session = await engine.session(SAMPLE_KEY)
            for number in range(first, first + each):
                await step(session, number)
                if number in compact:
                    await session.compact()
        sent += upstream.sent
    return sent


def judge(provider):
    """No request was refused but for its size."""
    for one in provider.requests:
        if isinstance(one.reply, RefusalReply):
            reply = one.reply
            report = ErrorReport("", reply.status, reply.code, reply.message, reply.body)
            assert classify_error(report).is_overflow, reply


def entries(place, kind):
    with SqliteStore(place) as store:
        return [entry.body for entry in store.read_path(SAMPLE_KEY) if isinstance(entry.body, kind)]


def judge_log(place):
    """Every word and every result is in the log, once and in order, on one branch."""
    said = [body.sized_message.message for body in entries(place, MessageEntry)]
    assert [one.text for one in said if one.role == "user"] == [words(number) for number in range(STEPS)]
    assert sum(len(one.results) for one in said) == 2 * STEPS
    with SqliteStore(place) as store:
        assert len(list(store.read_entries(SAMPLE_KEY, "message"))) == len(said)


def sealed(body):
    """Return all that is sealed in a body."""
    return set(re.findall(rb'"(?:signature|encrypted_content|thoughtSignature)":"([^"]{60,})"', body))


def name(pair):
    return " to ".join(f"{model} ({api})" for api, model in pair)


@pytest.mark.parametrize("pair", example_counts.every_other(PAIRS), ids=name)
def test_a_session_changes_hands(pair, tmp_path):
    """Whoever made what stands in the log, the next one takes it: nothing is refused and no word is lost."""
    place, provider = tmp_path / "store.db", Provider(ProviderSettings(window=WINDOW), list(script()))
    on_fake_clock(partial(switched, place, provider, pair, each=2, compact=(5,)))
    judge(provider)
    judge_log(place)
    assert all(isinstance(one.reply, ModelAnswer) for one in provider.requests)
    assert len(entries(place, CompactionEntry)) >= 2


@pytest.mark.parametrize("pair", example_counts.every_other(NATIVE), ids=name)
def test_what_a_provider_compacted_has_a_readable_twin_for_the_next(pair, tmp_path):
    """A compaction goes back as it is to whom it belongs; everybody else reads what it stands for."""
    place, provider = tmp_path / "store.db", Provider(ProviderSettings(window=WINDOW), list(script()))
    sent = on_fake_clock(partial(switched, place, provider, pair, each=3, native=True, compact=(1, 7)))
    judge(provider)
    judge_log(place)
    made = [native for body in entries(place, CompactionEntry) if (native := decode_native_summary(body)) is not None]
    assert made
    for native in made:
        seals = sealed(b"".join(map(bytes, native.items)))
        asked = {(one.api, one.model) for one in sent if seals & sealed(one.body)}
        assert asked == {(native.api, native.model)}


async def turned(place, provider, goal, numbers):
    """Do these steps with ``goal``; return what is reported before and after, and tokens for one estimated token."""
    upstream = ProviderUpstream(provider)
    async with Engine.open(place, upstream=upstream, target=goal, fields=make_request_fields(goal.api)) as engine:
        session = await engine.session(SAMPLE_KEY)
        before = session.report() if len(session.journal.state.history.sized_messages) else None
        scale = get_calibrated_ratio(session.journal.state, goal)
        for number in numbers:
            await step(session, number)
        return before, scale, session.report(), get_calibrated_ratio(session.journal.state, goal)


LEAKS = [
    (("anthropic", "claude-opus-5-5"), ("anthropic", "claude-sonnet-5-5")),
    (("anthropic", "claude-opus-5-5"), ("gemini", "gemini-3-pro")),
    (("openai-chat", "gpt-5.5"), ("openai-responses", "gpt-5-mini")),
]


@pytest.mark.parametrize("pair", LEAKS, ids=name)
def test_what_was_learned_of_one_model_is_not_believed_of_another(pair, tmp_path):
    """A window that an overflow told of, and how far the estimate is off, are those of the model that was asked."""
    place, says = tmp_path / "store.db", list(script())
    one, other = (get_target(api, model, window=WINDOW) for api, model in pair)
    small, whole = (
        Provider(ProviderSettings(window=WINDOW // 2, factor=2.0), says),
        Provider(ProviderSettings(window=WINDOW), says),
    )
    first, second = (partial(turned, place, provider, goal) for provider, goal in ((small, one), (whole, other)))
    _, _, told, scale = on_fake_clock(partial(first, range(3)))
    assert (told.window, told.window_source) == (WINDOW // 2, "learned")
    assert scale > 1.5
    before, begun, after, own = on_fake_clock(partial(second, range(3, 5)))
    assert (
        (before.window, before.window_source)
        == (after.window, after.window_source)
        == (WINDOW, other.limits.window_source)
    )
    assert begun == pytest.approx(other.prior_ratio)
    assert own < 1.5
    judge(small)
    assert all(isinstance(one.reply, ModelAnswer) for one in whole.requests)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[0][0] != "openai-chat"], ids=name)
def test_what_was_left_behind_is_there_when_its_model_is_back(pair, tmp_path):
    """signed-bytes-intact: a seal goes to the model that made it, byte for byte, and to no other; the log holds all of
    them.

    Thinking that is bound to its frame stays behind for good once another API was asked: that was another frame.
    """
    place, provider = tmp_path / "store.db", Provider(ProviderSettings(), list(script()))
    sent = []
    for number, (api, model) in enumerate((*pair, pair[0])):
        upstream = ProviderUpstream(provider)

        async def asked(api=api, model=model, number=number, upstream=upstream):
            async with Engine.open(
                place, upstream=upstream, target=get_target(api, model), fields=make_request_fields(api)
            ) as engine:
                await step(await engine.session(SAMPLE_KEY), number)

        on_fake_clock(asked)
        sent.append(upstream.sent)
    own = sealed(sent[0][-1].body)
    assert own
    assert all(own.isdisjoint(sealed(one.body)) for one in sent[1])
    back = sealed(sent[2][0].body)
    is_unbound = pair[0][0] == "anthropic" != pair[1][0]
    assert not back if is_unbound else own <= back


@pytest.mark.parametrize("pair", [PAIRS[0], PAIRS[2], *LEAKS[1:]], ids=name)
def test_a_smaller_window_takes_over_what_a_larger_one_held(pair, tmp_path):
    """G3: the first request to a model with a sixth of the window fits it; nothing is refused on the way there."""
    place, says = tmp_path / "store.db", list(script())
    (api, model), (other_api, other_model) = pair
    provider, large = Provider(ProviderSettings(), says), get_target(api, model, window=200_000)
    _, _, told, _ = on_fake_clock(partial(turned, place, provider, large, range(8)))
    assert told.tokens > 1.5 * WINDOW
    provider.settings = ProviderSettings(window=WINDOW)
    on_fake_clock(partial(turned, place, provider, get_target(other_api, other_model, window=WINDOW), range(8, STEPS)))
    assert all(isinstance(one.reply, ModelAnswer) for one in provider.requests)
    judge_log(place)
