"""The simulation: what a policy would have sent, and what its summaries are charged for."""

from itertools import count as numbers

from holdfast.config import target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.planning.pipeline import Policy
from holdfast.providers.request_body import body
from holdfast.providers.rules import validate
from holdfast.replay.session import Session, Step
from holdfast.replay.simulate import Judge, Sent, simulate
from holdfast.state.entries import Usage

WHERE = target("anthropic", "claude-sonnet-4-5", window=64_000)


def sent(policy: Policy) -> list[Sent]:
    """Return the requests of a session whose ids the API does not take, as pi writes them of another API."""
    ids, said = numbers(), [Message.of("user", "begin")]
    for _ in range(30):
        both = [f"call_{next(ids)}|fc" for _ in range(2)]
        said.append(Message("assistant", tuple(ToolCall(one, "bash", '{"command":"ls"}') for one in both)))
        said += [Message("tool", (ToolResult(one, "bash", (Text(f"{one} " * 1_500),)),)) for one in both]
    slots = tuple(map(measure, said))
    steps = tuple(Step(at, None, Usage(1, 1)) for at, one in enumerate(said) if one.role == "assistant")
    return list(simulate(Session(slots, steps), policy, WHERE, Judge(lambda slot: slot.size, 1_000)))


def test_a_summary_is_charged_for_a_request_that_could_be_sent():
    """What a model reads for its summary is the request as it stood, valid, and begins as the one before it did."""
    made = sent(Policy.preset("pi"))
    compacted = [at for at, one in enumerate(made) if one.before]
    assert compacted
    for at in compacted:
        before, last = made[at].before, made[at - 1].slots
        assert not [
            one for one in validate(body("anthropic", WHERE.model, before), "anthropic") if one.level == "error"
        ]
        assert [slot.digest for slot in before[: len(last)]] == [slot.digest for slot in last]
