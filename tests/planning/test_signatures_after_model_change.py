"""A conversation planned for one model and then for another: which model may see which signatures."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import ConversationState, Message, Plan, Target, apply, plan
from holdfast.config import get_target
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.requests.message_dicts import decode_messages, encode_messages

WIRES: dict[str, Any] = {"anthropic": anthropic, "gemini": gemini, "openai-responses": openai_responses}
MODELS = {
    "anthropic": ("claude-opus-4-8", "claude-sonnet-5"),
    "gemini": ("gemini-3-pro", "gemini-2.5-pro"),
    "openai-responses": ("gpt-5.5", "gpt-5.6-sol"),
}


def build_step(api: str, number: int) -> list[dict[str, Any]]:
    """Return a model's signed answer with a call, and the result of the call."""
    id_, signature = f"toolu_{number}", f"U0VBTF{number}A"
    if api == "anthropic":
        thought = {"type": "thinking", "thinking": "Look.", "signature": signature}
        call = {"type": "tool_use", "id": id_, "name": "sh", "input": {}}
        result = {"type": "tool_result", "tool_use_id": id_, "content": "ok"}
        return [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]
    if api == "gemini":
        call = {"functionCall": {"id": id_, "name": "sh", "args": {}}, "thoughtSignature": signature}
        result = {"functionResponse": {"id": id_, "name": "sh", "response": {"output": "ok"}}}
        return [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
    return [
        {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": signature},
        {"type": "function_call", "call_id": id_, "name": "sh", "arguments": "{}"},
        {"type": "function_call_output", "call_id": id_, "output": "ok"},
    ]


def build_request(api: str) -> list[dict[str, Any]]:
    message = {"role": "user", "content": "Go on."}
    return [message if api != "gemini" else {"role": "user", "parts": [{"text": "Go on."}]}]


def encode_request(history: list[Message], planned: Plan, api: str) -> str:
    return str(encode_messages(api, apply(history, planned)))


@pytest.mark.parametrize("api", WIRES)
def test_plan_sends_signatures_only_to_their_own_model(api: str) -> None:
    """Each model gets its own signatures and no other's, however history and state are kept in between."""
    first, second = MODELS[api]
    wire, history, state = build_request(api), list[Message](), None
    for number, model in enumerate([first, first, second, second, first, second]):
        history = decode_messages(api, wire)
        planned = plan(history, get_target(api, model), state=state)
        state = ConversationState.load(planned.state.dump())
        shown = {
            signature for signature in range(number) if f"U0VBTF{signature}A" in encode_request(history, planned, api)
        }
        own = {first: {0, 1, 4}, second: {2, 3, 5}}[model]
        assert shown == {signature for signature in range(number) if signature in own}
        wire += build_step(api, number)


def test_plan_continues_a_history_after_a_model_change() -> None:
    """After a change of models a history that is decoded again is the same one, and only new messages are added."""
    first, second = MODELS["anthropic"]
    wire, state = build_request("anthropic"), ConversationState()
    for number, model in enumerate([first, second, second, second]):
        planned = plan(decode_messages("anthropic", wire), get_target("anthropic", model), state=state)
        assert number != 3 or state.history.sized_messages.is_storage_of(planned.state.history.sized_messages)
        state = planned.state
        wire += build_step("anthropic", number)


def test_plan_keeps_message_objects_for_a_single_model() -> None:
    """With one model, or none named, the state keeps the message objects that were passed in."""
    history = decode_messages(
        "anthropic", [*build_request("anthropic"), *build_step("anthropic", 0), *build_step("anthropic", 1)]
    )
    for target in (get_target("anthropic", "claude-opus-4-8"), Target()):
        planned = plan(history[:3], target)
        planned = plan(history, target, state=planned.state)
        assert all(message is other for message, other in zip(planned.state.history.messages, history, strict=True))
