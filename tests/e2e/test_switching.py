"""One session that changes model and API in mid-run: whoever is asked next takes what is left of it.

Every ordered pair of the four APIs, and both models of each, ask in turn behind the same log, which is opened anew from
disk each time. The provider judges every request: seals of another model, or of another API, are refused.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations

import pytest

from holdfast.config import target
from holdfast.model.entries import Compaction, Said
from holdfast.model.gauging import Gauge
from holdfast.model.messages import Message
from holdfast.model.parts import Text, Thinking, ToolResult
from holdfast.model.projected import native_of
from holdfast.runtime.engine import Engine
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import run as on_fake_clock
from holdfast.testing.provider import Provider, Settings
from holdfast.testing.provider.calls import Answered, Refusal
from holdfast.testing.provider.calls import Said as Says
from holdfast.testing.samples import KEY
from holdfast.testing.upstream import ProviderUpstream
from holdfast.testing.workday import fields
from holdfast.view.tokens import ratio
from holdfast.wire.overflow import ErrorReport, classify

WINDOW = 32_000
STEPS, TURNS_EACH = 12, 2
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


def words(step):
    return f"Word {step} of the user: kelp number {step * 7_919 % 9_973} must not be lost."


def result(step):
    return "\n".join(f"{step} {line:>4}  part_{line * 31 % 97} = compute({line * 7_919 % 9_973})" for line in range(320))


def script():
    """Yield what the model says: two calls in a row and an answer for each step, thinking each time."""
    for step in range(STEPS):
        yield Says(f"Step {step}.", (("read", {"path": f"a{step}.py"}), ("grep", {"path": "b"})), f"Where is {step}?")
        yield Says("", (("bash", {"path": f"c{step}.py"}),), f"Still step {step}.")
        yield Says(f"Step {step} is done.", (), f"Done with {step}.")


async def step(session, number):
    """Do one step: words of the user's, and calls until there are none."""
    answer = await session.ask(words(number))
    while answer.message.calls:
        results = [ToolResult(call.id, call.name, (Text(result(number)),)) for call in answer.message.calls]
        await session.append(Message("tool", tuple(results)))
        answer = await session.ask()


async def switched(place, provider, pair, *, native=False, compact=()):
    """Do all steps, two at a time with each of a pair; each opens the store anew."""
    for first in range(0, STEPS, TURNS_EACH):
        api, model = pair[first // TURNS_EACH % len(pair)]
        upstream, goal = ProviderUpstream(provider), target(api, model, window=WINDOW)
        async with Engine.open(place, upstream=upstream, target=goal, fields=fields(api), native=native) as engine:
            session = await engine.session(KEY)
            for number in range(first, first + TURNS_EACH):
                await step(session, number)
                if number in compact:
                    await session.compact()


def judge(provider):
    """No request was refused but for its size, and none of those was sent twice in a row."""
    for one in provider.requests:
        if isinstance(one.reply, Refusal):
            reply = one.reply
            report = ErrorReport("", reply.status, reply.code, reply.message, reply.body)
            assert classify(report).is_overflow, reply


def entries(place, kind):
    with SqliteStore(place) as store:
        return [entry.body for entry in store.path(KEY) if isinstance(entry.body, kind)]


def judge_log(place):
    """Every word and every result is in the log, once and in order, on one branch."""
    said = [body.slot.message for body in entries(place, Said)]
    assert [one.text for one in said if one.role == "user"] == [words(number) for number in range(STEPS)]
    assert sum(len(one.results) for one in said) == 3 * STEPS
    with SqliteStore(place) as store:
        assert len(list(store.entries(KEY, "message"))) == len(said)


def name(pair):
    return " to ".join(f"{model} ({api})" for api, model in pair)


@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_a_session_changes_hands(pair, tmp_path):
    """Whoever made what stands in the log, the next one takes it: nothing is refused and no word is lost."""
    place, provider = tmp_path / "store.db", Provider(Settings(window=WINDOW), list(script()))
    on_fake_clock(partial(switched, place, provider, pair, compact=(5,)))
    judge(provider)
    judge_log(place)
    assert all(isinstance(one.reply, Answered) for one in provider.requests)
    assert len(entries(place, Compaction)) >= 2


@pytest.mark.parametrize("pair", NATIVE, ids=name)
def test_what_a_provider_compacted_has_a_readable_twin_for_the_next(pair, tmp_path):
    """A compaction goes back as it is to whom it belongs; everybody else reads what it stands for."""
    place, provider = tmp_path / "store.db", Provider(Settings(window=WINDOW), list(script()))
    on_fake_clock(partial(switched, place, provider, pair, native=True, compact=(1, 5)))
    judge(provider)
    judge_log(place)
    made = [native_of(body) for body in entries(place, Compaction)]
    assert any(made)
