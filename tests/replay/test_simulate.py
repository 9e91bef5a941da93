"""The simulation: what a policy would have sent, and what its summaries are charged for."""

from itertools import count as numbers

from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.pipeline import Policy
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request
from holdfast.replay.session import AnswerStep, ReplaySession
from holdfast.replay.simulate import ProviderTokenCounter, SimulatedRequest, simulate_session
from holdfast.state.entries import Usage

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=64_000)


def sent(policy: Policy) -> list[SimulatedRequest]:
    """Return the requests of a session whose ids the API does not take, as pi writes them of another API."""
    ids, said = numbers(), [Message.from_text("user", "begin")]
    for _ in range(30):
        both = [f"call_{next(ids)}|fc" for _ in range(2)]
        said.append(Message("assistant", tuple(ToolCall(one, "bash", '{"command":"ls"}') for one in both)))
        said += [Message("tool", (ToolResult(one, "bash", (Text(f"{one} " * 1_500),)),)) for one in both]
    slots = tuple(map(build_sized_message, said))
    steps = tuple(AnswerStep(at, None, Usage(1, 1)) for at, one in enumerate(said) if one.role == "assistant")
    return list(
        simulate_session(
            ReplaySession(slots, steps), policy, WHERE, ProviderTokenCounter(lambda slot: slot.tokens, 1_000)
        )
    )


def test_simulate_session_charges_summaries_for_valid_requests():
    """The request a model reads for its summary is the request as it was, valid, and begins like the one before it."""
    made = sent(Policy.preset("pi"))
    compacted = [at for at, one in enumerate(made) if one.before_compaction]
    assert compacted
    for at in compacted:
        before, last = made[at].before_compaction, made[at - 1].sized_messages
        assert not [
            one
            for one in validate_request(build_request_body("anthropic", WHERE.model, before), "anthropic")
            if one.level == "error"
        ]
        assert [slot.digest for slot in before[: len(last)]] == [slot.digest for slot in last]
