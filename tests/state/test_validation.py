"""What a target, a world, a policy or a part holds is told by its place where it cannot be, before it is reckoned with.

Values are made without being checked, so the doors do it: once for each object, and nowhere on the way of a step.
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
FRAMED = known("anthropic", "claude-sonnet-4-5", setup=RequestSetup("a", -9_000))

WRONG_NUMBERS = {
    "target.setup.tokens is -9000; give a whole number from 0 to 2**53": FRAMED,
    "target.limits.window is 1000": Target(limits=ModelLimits(10**400)),
    "target.limits.max_output is -4; give a whole number from 0 to 2**53, or None": Target(
        limits=ModelLimits(max_output=-4)
    ),
    "target.limits.max_input is 1000": Target(limits=ModelLimits(max_input=10**400)),
    "target.prior_ratio is nan; give a number from 0 to 2**53": Target(prior_ratio=math.nan),
    "target.prices.input is inf; give a number from 0 to 2**53": Target(prices=Prices(math.inf)),
    "target.cache_rules.ttl_seconds is -1; give a whole number from 0 to 2**53": Target(cache_rules=CacheRules(-1)),
}
OF_OTHER_TYPES = {
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
    "inputs.is_breaker_closed is 'no'; give True or False": PlanInputs(is_breaker_closed="no"),
}


def planned(given: Target | PlanInputs) -> Any:
    """Plan for a target, or in a world."""
    return plan(HELLO, given) if isinstance(given, Target) else plan(HELLO, Target(), inputs=given)


@pytest.mark.parametrize("told", WRONG_NUMBERS)
def test_a_number_that_cannot_be_is_a_value_error(told: str) -> None:
    """The error names the place, the number and what it may be, where else the plan would be nonsense."""
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{re.escape(told)}") as raised:
            planned(WRONG_NUMBERS[told])
    assert not isinstance(raised.value, WindowTooSmall)


@pytest.mark.parametrize("told", OF_OTHER_TYPES)
def test_a_value_of_another_type_is_a_type_error(told: str) -> None:
    """It is told by its place and what to give, and nothing is counted as true or taken apart that is no such thing."""
    with pytest.raises(TypeError, match=f"^{re.escape(told)}"):
        planned(OF_OTHER_TYPES[told])


@pytest.mark.parametrize(
    "given",
    [
        Target(limits=ModelLimits(requested_output=-1)),  # how some clients say that there is no limit
        Target(prior_ratio=2, cache_rules=CacheRules(lookback=None)),
        PlanInputs(idle_seconds=900.5),
        PlanInputs(idle_seconds=-1),  # a clock that was set
        PlanInputs(restored_texts=["rules"], summary=SummaryResult(0, "done")),
    ],
)
def test_what_somebody_may_mean_is_taken(given: Target | PlanInputs) -> None:
    """Whole numbers for others, lists for tuples, and numbers that stand for none are no mistakes."""
    assert planned(given).after


def test_a_target_is_looked_through_once() -> None:
    """What is asked of the same object again costs nothing; what is made from it is looked through anew."""
    good = Target()
    assert good.validation_problem is None
    assert "validation_problem" in vars(good)
    assert replace(good, prior_ratio=math.inf).validation_problem is not None


@pytest.mark.anyio
async def test_an_engine_is_opened_with_a_target_that_can_be() -> None:
    """The engine's door tells the same of its target, as the error that it has for all it is given."""
    with pytest.raises(ConfigError, match=r"^target.setup.tokens is -9000; give a whole number from 0"):
        async with Engine.open(":memory:", upstream=ScriptedUpstream([]), target=FRAMED):
            pass


def test_settings_made_by_hand_are_held_as_any_others() -> None:
    """What may stand for a value is that value, wherever the settings come from."""
    channels: Any = {"kelp": {"history_limit": 1}}
    groups: Any = {"history": HistorySettings(channels=channels), "window": WindowSettings(estimate_margin_share=1)}
    by_hand = Policy(settings=Settings(**groups))
    assert by_hand == Policy().with_settings(history={"channels": channels}, window={"estimate_margin_share": 1})
    assert by_hand.for_session("agent:one:kelp:direct:tide") is not None


@pytest.mark.parametrize(
    ("made", "told"),
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
def test_a_policy_is_made_of_settings_and_stages(made: Any, told: str) -> None:
    """What is none is refused where the policy is made."""
    with pytest.raises(ConfigError, match=f"^{told}"):
        made()


def test_a_stage_of_a_preset_needs_the_rules_of_that_preset() -> None:
    """Who takes the stages of another tool without its settings is told where to begin."""
    mixed = Policy(stages=Policy.preset("pi").stages)
    with pytest.raises(ConfigError, match=r"PiRules cannot run with the rules of PolicyRules: begin with"):
        plan(HELLO, Target(), mixed)


@pytest.mark.parametrize(
    ("made", "told"),
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
def test_parts_and_answers_are_made_of_what_they_hold(made: Any, told: str) -> None:
    """The error names the field, or the body, and what to give."""
    with pytest.raises((TypeError, ValueError), match=f"^{told}"):
        made()


@pytest.mark.parametrize("given", [b"", b"{}", b"\x93", ConversationState().dump()[:-3], "x", None])
def test_a_branch_is_loaded_from_what_was_dumped(given: Any) -> None:
    """Anything else is told as such, with what to do instead."""
    with pytest.raises(
        FormatError, match=r"^these are not the bytes of a state \(.+\); give what ConversationState.dump wrote"
    ):
        ConversationState.load(given)
