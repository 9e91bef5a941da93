"""Public functions reject wrong arguments before they use them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import ConversationState, Message, PlanInputs, Policy, Target, apply, open_store, plan
from holdfast.config import get_target
from holdfast.errors import ConfigError, HoldfastError
from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolCall
from holdfast.planning.builder import PlanBuilder
from holdfast.providers.answers.answer_stream import AnswerStream
from holdfast.providers.anthropic.compaction import merge_context_edits
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.render import render_error_response
from holdfast.providers.errors.report import Verdict
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.native_compaction import build_server_compaction_fields
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.target import ModelLimits
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream, ScriptedUpstream

HELLO = [Message.from_text("user", "hello")]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"messages": None}, "messages is of type NoneType; give a value of type Sequence"),
        ({"messages": HELLO[0]}, "messages is of type Message; give a value of type Sequence"),
        ({"messages": [{"role": "user", "content": "hi"}]}, r"messages\[0\] is a dict; plan takes Message values"),
        ({"target": "claude-sonnet-4-5"}, "target is of type str; give a value of type Target"),
        ({"policy": "holdfast"}, "policy is of type str; give a value of type Policy"),
        ({"state": plan(HELLO, Target())}, "state is of type Plan; give a value of type ConversationState$"),
        ({"inputs": {"force_compaction": True}}, "inputs is of type dict; give a value of type PlanInputs"),
        ({"target": Target(limits=5)}, "target.limits is 5; give a ModelLimits"),
        ({"target": Target(limits=ModelLimits("200k"))}, "target.limits.window is '200k'; give a whole number"),
        ({"target": Target(setup=9_000)}, "target.setup is 9000; give a RequestSetup"),
        (
            {"messages": [Message("robot", (Text("hi"),))]},
            r"messages\[0\] is not a message: its role is 'robot', not one of",
        ),
    ],
)
def test_plan_rejects_arguments_of_a_wrong_type(arguments: dict[str, Any], problem: str) -> None:
    """A value of another type is a ``TypeError`` that names the argument, its type and the expected type."""
    with pytest.raises(TypeError, match=f"^{problem}"):
        plan(**{"messages": HELLO, "target": Target(), "policy": Policy(), **arguments})


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ("hello", "$.parts"),
        (("hello",), "$.parts[0]"),
        ((Text(None),), "$.parts[0].text"),
        ((ToolCall("c", "sh", {"c": "ls"}),), "$.parts[0].arguments"),
        ((ToolCall(5, "sh", "{}"),), "$.parts[0].id"),
        ((ToolCall("c", None, "{}"),), "$.parts[0].name"),
        ((ToolCall("c", "sh", "{}", signature="abc"),), "$.parts[0].signature"),
        ((Text("hello", signature="abc"),), "$.parts[0].signature"),
    ],
)
def test_plan_rejects_an_invalid_message_with_its_path(parts: Any, path: str) -> None:
    """Messages are constructed unchecked; an invalid one is rejected with its index and the path inside it."""
    with pytest.raises(TypeError, match=r"^messages\[1\] is not a message: ") as raised:
        plan([*HELLO, Message("user", parts)], Target())
    assert f"at `{path}`" in str(raised.value)


@pytest.mark.parametrize("model", ["one", "another"])
@pytest.mark.parametrize(
    ("invalid_message", "problem"),
    [
        (None, "a NoneType; plan takes Message values"),
        (Message("assistant", None), "not a message: "),  # type: ignore[arg-type]
        (Message("assistant", ("hello",)), "not a message: "),  # type: ignore[arg-type]
    ],
)
def test_plan_rejects_an_invalid_message_in_a_known_position(invalid_message: Any, problem: str, model: str) -> None:
    """The message is rejected too if the state has another message in its place, whichever models were used."""
    signed_message = Message(
        "assistant", (Thinking("hm", ProviderSignature("anthropic", "", "c2VhbA==")), Text("hello"))
    )
    state = plan([*HELLO, signed_message, *HELLO], Target(model="one")).state
    state = plan([*HELLO, signed_message, *HELLO], Target(model=model), state=state).state
    with pytest.raises(TypeError, match=rf"^messages\[1\] is {problem}"):
        plan([*HELLO, invalid_message, *HELLO, *HELLO], Target(model=model), state=state)


def test_apply_rejects_swapped_arguments() -> None:
    """Swapped arguments, and a state in place of its plan, are rejected."""
    planned = plan(HELLO, Target())
    with pytest.raises(TypeError, match=r"^messages is of type Plan"):
        apply(planned, HELLO)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^plan is of type ConversationState; give a value of type Plan"):
        apply(HELLO, planned.state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: PlanInputs(cache_state="hot"), "PlanInputs.cache_state is 'hot'; it is one of 'warm', 'cold'"),
        (
            lambda: PlanInputs(overflow_step="cut"),
            "PlanInputs.overflow_step is 'cut'; it is one of '', 'compact', 'truncate', 'media', 'fallback'",
        ),
        (lambda: PlanInputs(idle_seconds="900"), "PlanInputs.idle_seconds is of type str; give seconds"),
        (lambda: Message.from_text("robot", "hi"), "role is 'robot'; the roles are system, user, assistant, tool"),
        (lambda: Message.from_text("user", 7), "text is of type int; give words, or make Message"),
        (lambda: Message.from_text("user", None), "text is of type NoneType; give words, or make Message"),
        (
            lambda: ConversationState().with_reported_usage("9000"),
            "input_tokens is of type str; give the number that the provider reported",
        ),
        (lambda: ConversationState().with_reported_usage(9, 1.5), "output_tokens is of type float; give the number"),
    ],
)
def test_constructors_reject_impossible_values(build: Any, problem: str) -> None:
    """The error names the argument, the value given and what is allowed."""
    with pytest.raises((TypeError, ValueError), match=f"^{problem}"):
        build()


@pytest.mark.parametrize(
    ("location", "arguments", "problem"),
    [
        ("agent.db", {"durability": "fast"}, "durability is 'fast'; it is one of 'process', 'power'"),
        (":memory:", {"durability": None}, "durability is None; it is one of"),
        ("agent.db", {"quota": 1_000}, "quota is of type int; give a value of type Quota$"),
        (7, {}, "location is of type int; give a value of type"),
    ],
)
def test_open_store_rejects_unknown_options(location: Any, arguments: dict[str, Any], problem: str) -> None:
    """An unknown durability, a quota of a wrong type and an impossible location are rejected."""
    with pytest.raises(ConfigError, match=f"^{problem}"):
        open_store(location, **arguments)


def test_policy_rejects_a_stage_that_is_no_function_or_has_a_taken_name() -> None:
    """A stage that cannot be called, or a name that is taken, is rejected when the policy is made."""
    with pytest.raises(ConfigError, match=r"^stage 'prune' is of type NoneType; a stage is a function that takes a"):
        Policy().replace_stage("prune", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^stage 'mine' is of type str; a stage is a function"):
        Policy().insert_stage_before("prune", "mine", "prune")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"^policy 'holdfast' has a stage 'media' already; give this one another name"
    ):
        Policy().insert_stage_before("prune", "media", lambda builder: builder)


def drop_builder(builder: PlanBuilder) -> PlanBuilder:
    """Add a notice, but do not return the builder."""
    builder.add_notice("mine", "noted")
    return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    "policy",
    [Policy().replace_stage("largest", drop_builder), Policy().insert_stage_before("history", "mine", drop_builder)],
)
def test_plan_names_a_stage_that_returns_no_builder(policy: Policy) -> None:
    """The error names the stage, its policy, what it returned, and what it must return."""
    name = next(name for name, stage in policy.stages if stage is drop_builder)
    problem = (
        f"^stage '{name}' of policy 'holdfast' returned a NoneType; a stage is a function that takes a PlanBuilder"
    )
    with pytest.raises(TypeError, match=problem):
        plan(HELLO, Target(), policy)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: parse_request("{}"), "the body is of type str; give the bytes of a request"),  # type: ignore[arg-type]
        (
            lambda: convert_request({"messages": []}, "gemini", "m"),
            "the body is of type dict; give the bytes of a request",
        ),  # type: ignore[arg-type]
        (lambda: classify_error(503), "report is of type int; give an ErrorReport or an AnswerReport"),  # type: ignore[arg-type]
        (
            lambda: render_error_response("aol", Verdict("server")),
            "no API is called 'aol'; the APIs are anthropic, openai-chat",
        ),
    ],
)
def test_provider_functions_reject_wrong_types_and_unknown_apis(call: Any, problem: str) -> None:
    """Bodies, reports and API names of a wrong kind are rejected with what to give instead."""
    with pytest.raises((TypeError, ValueError), match=f"^{problem}"):
        call()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: fix_request({"model": "m"}, "anthropic"), "body is of type dict; give a value of type bytes"),
        (lambda: get_api_spec(["anthropic"]), r"no module speaks \['anthropic'\]; the APIs are"),
        (lambda: AnswerStream(["anthropic"]), "no API is called"),
        (lambda: validate_request({}, ["anthropic"]), "no rules are known for"),
        (
            lambda: render_error_response("anthropic", "overflow"),
            "verdict is of type str; give a value of type Verdict",
        ),
        (
            lambda: build_server_compaction_fields("anthropic", "120k"),
            "tokens is of type str; give a value of type int",
        ),
        (lambda: merge_context_edits({}), r"options\[0\] has no edits"),
        (lambda: get_target("anthropic", "m", catalog="holdfast.toml"), "catalog is of type str; give a value of type"),
        (lambda: Provider({"window": 9}), "settings is of type dict; give a value of type"),
        (lambda: Provider().answer_body("claude", {}), "no module speaks 'claude'; the APIs are"),
        (lambda: ProviderSettings(window="32k"), "window is of type str; give a value of type int"),
        (lambda: ProviderUpstream(Provider(), ["529:head:2"]), "fault is of type str; give a value of type Fault"),
        (lambda: ScriptedUpstream(None), "replies is of type NoneType; give a value of type Sequence"),
    ],
)
def test_provider_functions_name_the_argument_of_a_wrong_type(call: Any, problem: str) -> None:
    """Functions for providers and the shipped fakes name the argument, its type and the expected type."""
    with pytest.raises((HoldfastError, TypeError), match=f"^{problem}"):
        call()
