"""``Policy``, and the pipeline that runs its stages to plan the next request of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from holdfast.errors import ConfigError, UnknownPolicy, WindowTooSmall, raise_if_wrong_type
from holdfast.normalize.projection import normalize_projection
from holdfast.planning.budget import apply_learned_limits, apply_window_cap, check_budget, describe_raised_reserves
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.open_work.notes import keep_open_work
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import change_settings, check_settings, convert_all_settings, flatten_changes
from holdfast.planning.stages.cache_breakpoints import choose_cache_breakpoints
from holdfast.planning.stages.history_limit import get_history_limit
from holdfast.planning.stages.order import OWN_STAGES, NamedStages, Stage
from holdfast.planning.stages.smallest_request import estimate_irreducible_tokens
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import DecisionEntry, Entry, RequestEntry
from holdfast.state.fold.fold_entries import apply_entry, restore_coverage_before_retry
from holdfast.state.plan import Notice, Plan
from holdfast.state.target import PlanInputs, Target
from holdfast.state.view import compute_prefix_digest

OVER_WINDOW_RULE = "over-window"
"""Rule of the notice that the request is still larger than the window after all stages."""
RESERVE_FLOOR_RULE = "reserve-floor"
"""Rule of the notice that a configured reserve was raised to the floor."""


class Policy(Struct, frozen=True):
    """Settings, rules, and named stages in order. The methods return changed copies.

    The rules decide inside the stages where policies of other tools differ from ours. Their fields are the settings
    that only such a policy has.
    """

    name: str = "holdfast"
    settings: Settings = Settings()
    stages: NamedStages = OWN_STAGES
    rules: PolicyRules = PolicyRules()

    def __post_init__(self) -> None:
        """Check and convert the fields; raises ``ConfigError`` for one of a wrong type or value."""
        expected_types = {"policy.settings": (self.settings, Settings), "policy.rules": (self.rules, PolicyRules)}
        raise_if_wrong_type(ConfigError, **expected_types, **{"policy.stages": (self.stages, Sequence)})
        settings, rules = convert_all_settings(self.settings, self.rules)
        force_setattr(self, "settings", settings)
        force_setattr(self, "rules", rules)
        for position, item in enumerate(self.stages):
            match item:
                case (str(name), stage):
                    if not callable(stage):
                        raise ConfigError(f"stage {name!r} is of type {type(stage).__name__}; {_STAGE_HINT}")
                case _:
                    kind = type(item).__name__
                    raise ConfigError(f"policy.stages[{position}] is of type {kind}; give a pair of a name and a stage")

    @classmethod
    def preset(cls, name: str) -> Policy:
        """Return the policy called ``name``; raises ``UnknownPolicy``, which lists the names, for any other."""
        raise_if_wrong_type(UnknownPolicy, name=(name, str))
        preset = PRESETS.get(name)
        if preset is None:
            raise UnknownPolicy(f"no policy is called {name!r}; there are: {', '.join(PRESETS)}")
        return cls(name, preset.settings, preset.stages, preset.rules)

    def replace_stage(self, name: str, stage: Stage) -> Policy:
        """Return the policy with ``stage`` in place of the one called ``name``; raises ``UnknownPolicy`` if none is."""
        self._find_stage(name)
        stages: list[tuple[str, Stage]] = []
        for stage_name, old_stage in self.stages:
            stages.append((stage_name, stage if stage_name == name else old_stage))
        return replace(self, stages=tuple(stages))

    def insert_stage_before(self, name: str, new: str, stage: Stage) -> Policy:
        """Return the policy with ``stage``, called ``new``, inserted before the stage called ``name``.

        Raises ``UnknownPolicy`` if no stage is called ``name``, ``ConfigError`` if one is called ``new``.
        """
        position = self._find_stage(name)
        if new in dict(self.stages):
            raise ConfigError(f"policy {self.name!r} has a stage {new!r} already; give this one another name")
        return replace(self, stages=(*self.stages[:position], (new, stage), *self.stages[position:]))

    def with_settings(self, **groups: Mapping[str, object]) -> Policy:
        """Return the policy with some settings changed, given by group: ``compaction={"trigger_share": 0.8}``.

        The group ``preset`` has the settings that only this policy has. Raises ``ConfigError`` for an unknown group or
        name, for a value that is not allowed, and for one that contradicts another setting.
        """
        changes = flatten_changes(groups)
        settings, rules = change_settings(self.settings, self.rules, changes)
        for problem in check_settings(settings, rules):
            # A contradiction between settings that were not changed is not this caller's.
            if changes.keys() & {*problem.settings}:
                raise ConfigError(problem.why)
        return replace(self, settings=settings, rules=rules)

    def for_session(self, key: str) -> Policy:
        """Return the policy for the session called ``key``, with the limit of user turns that its channel has."""
        raise_if_wrong_type(ConfigError, key=(key, str))
        limit = get_history_limit(key, self.settings.history.channels)
        if limit is None:
            return self
        return self.with_settings(history={"max_turns": limit})

    def describe_raised_reserves(self, window: int | None = None) -> tuple[str, ...]:
        """Return a sentence for each reserve that was configured below the floor of ``window`` and is raised to it."""
        preset = PRESETS.get(self.name, PRESETS["holdfast"])
        return describe_raised_reserves(self.settings, self.rules, (preset.settings, preset.rules), window)

    def _find_stage(self, name: str) -> int:
        """Return the position of the stage called ``name``; raises ``UnknownPolicy`` for any other name."""
        names = [stage_name for stage_name, _ in self.stages]
        if name not in names:
            raise UnknownPolicy(f"policy {self.name!r} has no stage {name!r}; it has: {', '.join(names)}")
        return names.index(name)


_STAGE_HINT = "a stage is a function that takes a PlanBuilder and returns it, with its decisions added"


def plan_request(
    state: ConversationState,
    target: Target,
    policy: Policy = Policy(),
    inputs: PlanInputs = PlanInputs(),
) -> Plan:
    """Return the plan of the next request of ``state``.

    The cost grows with the new messages since the last request, not with the history. Raises ``WindowTooSmall`` if the
    window cannot hold what must be sent.
    """
    staged = _run_stages(state, target, policy, inputs)
    builder = staged.builder
    normalization, normalized_prefix = normalize_projection(builder.state, builder.target.dialect)
    # A retry of the same request gets the breakpoints that its first attempt had.
    state_before_request = restore_coverage_before_retry(builder.state, staged.request)
    options = choose_cache_breakpoints(state_before_request, normalization, builder.target, builder.settings)
    planned_state = staged.plan.state
    view = replace(planned_state.view, normalized_prefix=normalized_prefix)
    return replace(
        staged.plan,
        state=replace(planned_state, view=view),
        normalization=normalization,
        options=replace(options, max_tokens=compute_output_limit(builder)),
    )


def plan_without_normalization(
    state: ConversationState,
    target: Target,
    policy: Policy = Policy(),
    inputs: PlanInputs = PlanInputs(),
) -> Plan:
    """Return the plan of the next request without normalization, cache breakpoints and output limit.

    For requests that are never sent: it tells which content would be reduced and how much would be left. That is half
    of the work of a plan.
    """
    return _run_stages(state, target, policy, inputs).plan


class _StagedPlan(NamedTuple):
    """A plan after its stages, before normalization."""

    plan: Plan
    builder: PlanBuilder
    """The builder that the last stage returned; its state does not hold the request yet."""
    request: RequestEntry


def _run_stages(
    state: ConversationState,
    target: Target,
    policy: Policy,
    inputs: PlanInputs,
) -> _StagedPlan:
    """Check the budget and run the stages of ``policy`` in order, then make sure that all open work is still named."""
    settings = policy.settings
    configured_window = target.limits.window
    state = apply_entry(state, Entry("frame", None, target.setup))
    # The cap comes last: the warnings of check_budget compare the window with and without it.
    target = apply_learned_limits(target, state, settings)
    budget, notices = check_budget(target, settings, policy.rules)
    target = apply_window_cap(target, settings)
    raised_reserves = policy.describe_raised_reserves(budget.window)
    notices = (*notices, *(Notice(RESERVE_FLOOR_RULE, why) for why in raised_reserves))
    builder = PlanBuilder(
        state,
        target,
        settings,
        inputs,
        budget,
        policy.rules,
        notices=notices,
    )
    tokens_before = builder.estimated_tokens
    for name, stage in policy.stages:
        builder = stage(builder)
        if not isinstance(builder, PlanBuilder):
            raise TypeError(
                f"stage {name!r} of policy {policy.name!r} returned a {type(builder).__name__}; {_STAGE_HINT}"
            )
    builder = _check_fit(keep_open_work(builder))
    request = RequestEntry(
        compute_prefix_digest(builder.state),
        len(state.history.sized_messages),
        target.model,
        configured_window,
        target.api,
    )
    plan = Plan(
        state=_apply_planned_entries(state, builder, request),
        record=builder.record,
        compaction=builder.compaction,
        blobs=builder.blobs,
        summary_request=builder.summary_request,
        window=target.limits.window,
        before=tokens_before,
        after=builder.estimated_tokens,
        notices=builder.notices,
    )
    return _StagedPlan(plan, builder, request)


def _check_fit(builder: PlanBuilder) -> PlanBuilder:
    """Add a notice if the request is still larger than the model takes.

    Raises ``WindowTooSmall`` if no plan at all could make it fit.
    """
    limits, min_answer = builder.target.limits, builder.settings.reserve.min
    max_tokens = min(limits.window, limits.max_input or limits.window)
    if builder.estimated_tokens + min_answer <= max_tokens:
        return builder
    # Only now: the smallest request there is takes a while to estimate.
    min_tokens = estimate_irreducible_tokens(builder.state, builder.target, builder.settings)
    if min_tokens + min_answer > limits.window:
        raise WindowTooSmall(
            f"No request fits: the smallest possible one has about {min_tokens:,} tokens (system, tools, the "
            "newest message "
            f"and open calls, cut short), an answer needs {min_answer:,}, and the window has "
            f"{limits.window:,} ({limits.window_source}). Use a larger window, or send less of these."
        )
    if builder.estimated_tokens <= max_tokens:
        return builder
    # Our estimate may be wrong, so the request is sent all the same; if it is refused, recovery makes it smaller.
    why = (
        f"about {builder.estimated_tokens:,} tokens will be sent where {max_tokens:,} fit; use a model with a "
        "larger window"
    )
    return builder.add_notice(OVER_WINDOW_RULE, why)


def compute_output_limit(builder: PlanBuilder) -> int | None:
    """Return the most tokens that the answer may have, or None if the caller's own limit can stay.

    It is the lowest of the caller's limit, the model's, and the room that the request leaves in the window; but never
    less than ``reserve.min``: a shorter answer is of no use.
    """
    limits = builder.target.limits
    requested_tokens = limits.requested_output
    if requested_tokens is None:
        return None
    remaining = builder.budget.window - builder.upper_estimate
    window_limit = max(remaining, builder.settings.reserve.min)
    max_tokens = min(requested_tokens, limits.max_output or requested_tokens, window_limit)
    return max_tokens if max_tokens < requested_tokens else None


def _apply_planned_entries(state: ConversationState, builder: PlanBuilder, request: RequestEntry) -> ConversationState:
    """Return ``state`` as it will be once the log holds this plan's entries: decision, compaction and request.

    Nothing is written here. The state of ``builder`` had the edits applied stage by stage; here they are one decision,
    as they will be when the log is read again. The entries get placeholder ids: the real ones are given when the plan
    is committed.
    """
    if builder.record:
        state = apply_entry(
            state,
            Entry(
                f"decision:{request.prefix_digest}",
                None,
                DecisionEntry(builder.record),
            ),
        )
    if builder.compaction is not None:
        state = apply_entry(state, Entry(f"compaction:{request.prefix_digest}", None, builder.compaction))
    return apply_entry(state, Entry("request", None, request))
