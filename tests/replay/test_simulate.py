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

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=64_000)


def simulate(policy: Policy) -> list[SimulatedRequest]:
    """Simulate a session whose call ids the API does not accept, as pi writes them for another API."""
    ids, messages = numbers(), [Message.from_text("user", "begin")]
    for _ in range(30):
        call_ids = [f"call_{next(ids)}|fc" for _ in range(2)]
        calls = tuple(ToolCall(call_id, "bash", '{"command":"ls"}') for call_id in call_ids)
        messages.append(Message("assistant", calls))
        results = [ToolResult(call_id, "bash", (Text(f"{call_id} " * 1_500),)) for call_id in call_ids]
        messages += [Message("tool", (result,)) for result in results]
    sized = tuple(map(build_sized_message, messages))
    steps = tuple(
        AnswerStep(at, None, Usage(1, 1)) for at, message in enumerate(messages) if message.role == "assistant"
    )
    return list(
        simulate_session(
            ReplaySession(sized, steps), policy, TARGET, ProviderTokenCounter(lambda message: message.tokens, 1_000)
        )
    )


def test_simulate_session_charges_summaries_for_valid_requests():
    """The request a model reads for its summary is the request as it was, valid, and begins like the one before it."""
    requests = simulate(Policy.preset("pi"))
    compacted = [at for at, request in enumerate(requests) if request.before_compaction]
    assert compacted
    for at in compacted:
        before, last = requests[at].before_compaction, requests[at - 1].sized_messages
        assert not [
            finding
            for finding in validate_request(build_request_body("anthropic", TARGET.model, before), "anthropic")
            if finding.level == "error"
        ]
        assert [message.digest for message in before[: len(last)]] == [message.digest for message in last]
