"""Wrong values in a target, plan inputs, a policy or a part are reported with the name of the field.

msgspec does not check values on construction, so the public entry points do it, once for each object.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import ConversationState, Engine, Message, PlanInputs, Policy, Target, plan
from holdfast.config import get_target as known
from holdfast.errors import ConfigError, FormatError, WindowTooSmall
from holdfast.messages.parts import Media
from holdfast.planning.settings import HistorySettings, ResultSettings, Settings, WindowSettings
from holdfast.providers.answers.answer_stream import parse_answer
from holdfast.state.dialect import Dialect
from holdfast.state.entries import RequestSetup
from holdfast.state.target import CacheRules, ModelLimits, Prices, SummaryResult
from holdfast.testing.upstream import ScriptedUpstream

HELLO = [Message.from_text("user", "hello")]
NEGATIVE_SETUP_TARGET = known("anthropic", "claude-sonnet-4-5", setup=RequestSetup("a", -9_000))

WRONG_NUMBERS = {
    "target.setup.tokens is -9000; give a whole number from 0 to 2**53": NEGATIVE_SETUP_TARGET,
    "target.limits.window is 1000": Target(limits=ModelLimits(10**400)),
    "target.limits.max_output is -4; give a whole number from 0 to 2**53, or None": Target(
        limits=ModelLimits(max_output=-4)
    ),
    "target.limits.max_input is 1000": Target(limits=ModelLimits(max_input=10**400)),
    "target.prior_ratio is nan; give a number from 0 to 2**53": Target(prior_ratio=math.nan),
    "target.prices.input is inf; give a number from 0 to 2**53": Target(prices=Prices(math.inf)),
    "target.cache_rules.ttl_seconds is -1; give a whole number from 0 to 2**53": Target(cache_rules=CacheRules(-1)),
}
WRONG_TYPES = {
    "target.setup.tokens is '9000'; give a whole number": Target(setup=RequestSetup("a", "9000")),
    "target.limits.max_input is '5'; give a whole number from 0 to 2**53, or None": Target(
        limits=ModelLimits(max_input="5")
    ),
    "target.prior_ratio is None; give a number": Target(prior_ratio=None),
    "target.dialect is None; give a Dialect": Target(dialect=None),
    "target.dialect is 'anthropic'; give a Dialect": Target(dialect="anthropic"),
    "target.dialect.max_bytes is '5 MB'; give a whole number": Target(dialect=Dialect("gemini", max_bytes="5 MB")),
    "target.model is None; give a str": Target(model=None),
    "inputs.summary is 'x'; give a SummaryResult, or None": PlanInputs(summary="x"),
    "inputs.summary.stop is 'x'; give a whole number": PlanInputs(summary=SummaryResult("x", "text")),
    "inputs.restored_texts is (1,); give a list, of which each is a str": PlanInputs(restored_texts=(1,)),
    "inputs.restored_texts is 'abc'; give a list": PlanInputs(restored_texts="abc"),
    "inputs.allow_auto_compaction is 'no'; give True or False": PlanInputs(allow_auto_compaction="no"),
}


def plan_with(value: Target | PlanInputs) -> Any:
    """Plan with this target, or with these inputs."""
    return plan(HELLO, value) if isinstance(value, Target) else plan(HELLO, Target(), inputs=value)


@pytest.mark.parametrize("problem", WRONG_NUMBERS)
def test_plan_rejects_impossible_numbers(problem: str) -> None:
    """The ``ValueError`` names the field, the number and what it may be; otherwise the plan would be nonsense."""
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{re.escape(problem)}") as raised:
            plan_with(WRONG_NUMBERS[problem])
    assert not isinstance(raised.value, WindowTooSmall)


@pytest.mark.parametrize("problem", WRONG_TYPES)
def test_plan_rejects_values_of_another_type(problem: str) -> None:
    """The ``TypeError`` names the field and what to give; no text counts as true or is taken apart as a list."""
    with pytest.raises(TypeError, match=f"^{re.escape(problem)}"):
        plan_with(WRONG_TYPES[problem])


@pytest.mark.parametrize(
    "value",
    [
        Target(limits=ModelLimits(requested_output=-1)),  # how some clients say that there is no limit
        Target(prior_ratio=2, cache_rules=CacheRules(lookback=None)),
        PlanInputs(idle_seconds=900.5),
        PlanInputs(idle_seconds=-1),  # a clock that was set
        PlanInputs(restored_texts=["rules"], summary=SummaryResult(0, "done")),
    ],
)
def test_plan_accepts_values_with_an_obvious_meaning(value: Target | PlanInputs) -> None:
    """Whole numbers for floats, lists for tuples, and numbers that stand for "none" are accepted."""
    assert plan_with(value).after


def test_target_is_validated_once_for_each_object() -> None:
    """The result is kept on the object; a copy made with other values is validated anew."""
    good = Target()
    assert good.validation_problem is None
    assert "validation_problem" in vars(good)
    assert replace(good, prior_ratio=math.inf).validation_problem is not None


@pytest.mark.anyio
async def test_engine_open_rejects_an_impossible_target() -> None:
    """``Engine.open`` reports the same problem as a ``ConfigError``."""
    with pytest.raises(ConfigError, match=r"^target.setup.tokens is -9000; give a whole number from 0"):
        async with Engine.open(":memory:", upstream=ScriptedUpstream([]), target=NEGATIVE_SETUP_TARGET):
            pass


def test_settings_built_by_hand_equal_those_of_with_settings() -> None:
    """Values are converted in the same way wherever the settings come from."""
    channels: Any = {"kelp": {"history_limit": 1}}
    groups: Any = {"history": HistorySettings(channels=channels), "window": WindowSettings(estimate_margin_share=1)}
    by_hand = Policy(settings=Settings(**groups))
    assert by_hand == Policy().with_settings(history={"channels": channels}, window={"estimate_margin_share": 1})
    assert by_hand.for_session("agent:one:kelp:direct:tide") is not None


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: Policy(stages=None), "policy.stages is of type NoneType; give a value of type Sequence"),
        (lambda: Policy(stages=(Policy().stages[0][1],)), r"policy.stages\[0\] is of type function; give a pair of"),
        (lambda: Policy(stages=(("mine", 5),)), "stage 'mine' is of type int; a stage is a function"),
        (lambda: Policy(settings=Settings(results={})), "settings.results is of type dict; give ResultSettings"),
        (lambda: Policy(rules=None), "policy.rules is of type NoneType; give a value of type PolicyRules"),
        (lambda: Policy().with_settings(compacton={}), "there is no group of settings 'compacton'; did you mean"),
        (lambda: Policy().with_settings(trigger_share=0.5), ".*'trigger_share'; did you mean compaction.trigger_share"),
        (lambda: Policy().with_settings(compaction=0.5), "compaction = 0.5: give a dict of its settings, by name"),
        (
            lambda: Policy().with_settings(compaction={"triger_share": 0.5}),
            "there is no setting 'compaction.triger_share'; did you mean compaction.trigger_share",
        ),
        (
            lambda: Policy().with_settings(preset={"tail_tokens": 1}),
            "there is no setting 'preset.tail_tokens'; did you mean",
        ),
        (lambda: Policy(settings={}), "policy.settings is of type dict; give a value of type Settings"),
        (lambda: Policy().with_settings(results={"spill_chars": 10**400}), "results.spill_chars = 1000"),
        (
            lambda: Policy(settings=Settings(window=WindowSettings(estimate_margin_share=math.inf))),
            "window.estimate_margin_share = inf: ",
        ),
        (
            lambda: Policy(settings=Settings(results=ResultSettings(spill_chars_by_tool=None))),
            "results.spill_chars_by_tool = None: ",
        ),
        (lambda: Policy().for_session(None), "key is of type NoneType; give a value of type str"),
    ],
)
def test_policy_rejects_wrong_stages_and_settings(build: Any, problem: str) -> None:
    """The error is raised where the policy is built and names the wrong value."""
    with pytest.raises(ConfigError, match=f"^{problem}"):
        build()


def test_plan_rejects_stages_of_a_preset_without_its_rules() -> None:
    """The error says which preset to begin with."""
    mixed = Policy(stages=Policy.preset("pi").stages)
    with pytest.raises(ConfigError, match=r"PiRules cannot run with the rules of PolicyRules: begin with"):
        plan(HELLO, Target(), mixed)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (
            lambda: Media("image", "image/png", 6, "", None),
            "Media.source is of type NoneType; give a value of type str",
        ),
        (lambda: Media("image", "image/png", "68", "", "x"), "Media.size is of type str; give a value of type int"),
        (lambda: parse_answer("anthropic", {"content": []}), "the body is of type dict; give the bytes of an answer"),
        (lambda: parse_answer("anthropic", None), "the body is of type NoneType; give the bytes of an answer"),
        (lambda: parse_answer("anthropic", 8), "the body is of type int; give the bytes of an answer"),
    ],
)
def test_media_and_parse_answer_reject_wrong_types(build: Any, problem: str) -> None:
    """The error names the field, or the body, and what to give."""
    with pytest.raises((TypeError, ValueError), match=f"^{problem}"):
        build()


@pytest.mark.parametrize("value", [b"", b"{}", b"\x93", ConversationState().dump()[:-3], "x", None])
def test_load_rejects_bytes_that_dump_did_not_write(value: Any) -> None:
    """The ``FormatError`` says what to give instead."""
    with pytest.raises(
        FormatError, match=r"^these are not the bytes of a state \(.+\); give what ConversationState.dump wrote"
    ):
        ConversationState.load(value)
