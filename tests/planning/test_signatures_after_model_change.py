"""A conversation that is planned for one model, then for another: whose is what is sealed in it."""

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


def said(api: str, number: int) -> list[dict[str, Any]]:
    """Return what a model says in one step, sealed, and what came of its call."""
    id_, seal = f"toolu_{number}", f"U0VBTF{number}A"
    if api == "anthropic":
        thought = {"type": "thinking", "thinking": "Look.", "signature": seal}
        call = {"type": "tool_use", "id": id_, "name": "sh", "input": {}}
        result = {"type": "tool_result", "tool_use_id": id_, "content": "ok"}
        return [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]
    if api == "gemini":
        call = {"functionCall": {"id": id_, "name": "sh", "args": {}}, "thoughtSignature": seal}
        result = {"functionResponse": {"id": id_, "name": "sh", "response": {"output": "ok"}}}
        return [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
    return [
        {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": seal},
        {"type": "function_call", "call_id": id_, "name": "sh", "arguments": "{}"},
        {"type": "function_call_output", "call_id": id_, "output": "ok"},
    ]


def begun(api: str) -> list[dict[str, Any]]:
    words = {"role": "user", "content": "Go on."}
    return [words if api != "gemini" else {"role": "user", "parts": [{"text": "Go on."}]}]


def sent(history: list[Message], planned: Plan, api: str) -> str:
    return str(encode_messages(api, apply(history, planned)))


@pytest.mark.parametrize("api", WIRES)
def test_another_model_is_not_shown_what_the_last_one_sealed(api: str) -> None:
    """Each model is shown its own seals and no other's, however the history and the branch are kept in between."""
    first, second = MODELS[api]
    wire, history, branch = begun(api), list[Message](), None
    for number, model in enumerate([first, first, second, second, first, second]):
        history = decode_messages(api, wire)
        planned = plan(history, get_target(api, model), state=branch)
        branch = ConversationState.load(planned.state.dump())
        shown = {seal for seal in range(number) if f"U0VBTF{seal}A" in sent(history, planned, api)}
        own = {first: {0, 1, 4}, second: {2, 3, 5}}[model]
        assert shown == {seal for seal in range(number) if seal in own}
        wire += said(api, number)


def test_what_is_known_of_seals_is_no_edit_of_the_past() -> None:
    """After a change of models a history that is read anew is the same one: it goes on, and only what is new is new."""
    first, second = MODELS["anthropic"]
    wire, branch = begun("anthropic"), ConversationState()
    for number, model in enumerate([first, second, second, second]):
        planned = plan(decode_messages("anthropic", wire), get_target("anthropic", model), state=branch)
        assert number != 3 or branch.history.sized_messages.is_storage_of(planned.state.history.sized_messages)
        branch = planned.state
        wire += said("anthropic", number)


def test_one_model_alone_is_told_nothing() -> None:
    """Where one model is asked all the time, and where nobody names one, the very messages that were given are held."""
    history = decode_messages("anthropic", [*begun("anthropic"), *said("anthropic", 0), *said("anthropic", 1)])
    for to in (get_target("anthropic", "claude-opus-4-8"), Target()):
        planned = plan(history[:3], to)
        planned = plan(history, to, state=planned.state)
        assert all(one is other for one, other in zip(planned.state.history.messages, history, strict=True))
