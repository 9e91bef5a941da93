"""The pipeline: stages in order, from a branch to the plan of its next request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from holdfast.errors import ConfigError, UnknownPolicy, WindowTooSmall, raise_if_wrong_type
from holdfast.normalize.projection import normalize_projection
from holdfast.planning.budget import apply_learned_limits, apply_window_cap, check_budget, describe_raised_reserves
from holdfast.planning.builder import PlanBuilder
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
"""Rule of the notice that a request does not fit the window, whatever the policy could do."""
RESERVE_FLOOR_RULE = "reserve-floor"
"""Rule of the notice that more of the window is held back than was configured."""


class Policy(Struct, frozen=True):
    """Settings, rules, and ordered, named stages. The methods return changed copies.

    The rules answer what the policies of other tools decide otherwise inside a stage; their fields are the settings
    that only such a policy has.
    """

    name: str = "holdfast"
    settings: Settings = Settings()
    stages: NamedStages = OWN_STAGES
    rules: PolicyRules = PolicyRules()

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` for settings, rules and stages that are none."""
        expected_types = {"policy.settings": (self.settings, Settings), "policy.rules": (self.rules, PolicyRules)}
        raise_if_wrong_type(ConfigError, **expected_types, **{"policy.stages": (self.stages, Sequence)})
        settings, rules = convert_all_settings(self.settings, self.rules)
        force_setattr(self, "settings", settings)
        force_setattr(self, "rules", rules)
        for at, item in enumerate(self.stages):
            match item:
                case (str(name), stage):
                    if not callable(stage):
                        raise ConfigError(f"stage {name!r} is of type {type(stage).__name__}; {_STAGE_HINT}")
                case _:
                    kind = type(item).__name__
                    raise ConfigError(f"policy.stages[{at}] is of type {kind}; give a pair of a name and a stage")

    @classmethod
    def preset(cls, name: str) -> Policy:
        """Return the policy called ``name``; raises ``UnknownPolicy`` with the list."""
        raise_if_wrong_type(UnknownPolicy, name=(name, str))
        preset = PRESETS.get(name)
        if preset is None:
            raise UnknownPolicy(f"no policy is called {name!r}; there are: {', '.join(PRESETS)}")
        return cls(name, preset.settings, preset.stages, preset.rules)

    def replace_stage(self, name: str, stage: Stage) -> Policy:
        """Return the policy with ``stage`` in place of the one called ``name``."""
        self._find_stage(name)
        return replace(self, stages=tuple((old, stage if old == name else old_stage) for old, old_stage in self.stages))

    def insert_stage_before(self, name: str, new: str, stage: Stage) -> Policy:
        """Return the policy with ``stage``, called ``new``, in front of the one called ``name``."""
        at = self._find_stage(name)
        if new in dict(self.stages):
            raise ConfigError(f"policy {self.name!r} has a stage {new!r} already; give this one another name")
        return replace(self, stages=(*self.stages[:at], (new, stage), *self.stages[at:]))

    def with_settings(self, **groups: Mapping[str, object]) -> Policy:
        """Return the policy with some settings changed, given by group: ``compaction={"trigger_share": 0.8}``.

        The group ``preset`` has the settings that only this policy has. Raises ``ConfigError`` for a group, a name or a
        value that cannot be, and for one that contradicts others.
        """
        changes = flatten_changes(groups)
        settings, rules = change_settings(self.settings, self.rules, changes)
        for problem in check_settings(settings, rules):
            if changes.keys() & {*problem.settings}:
                raise ConfigError(problem.why)
        return replace(self, settings=settings, rules=rules)

    def for_session(self, key: str) -> Policy:
        """Return the policy for the session called ``key``: it shows the user turns that its channel's limit says."""
        raise_if_wrong_type(ConfigError, key=(key, str))
        limit = get_history_limit(key, self.settings.history.channels)
        return self if limit is None else self.with_settings(history={"max_turns": limit})

    def describe_raised_reserves(self, window: int | None = None) -> tuple[str, ...]:
        """Return a sentence for each reserve that was configured under the floor, and is raised in ``window``."""
        preset = PRESETS.get(self.name, PRESETS["holdfast"])
        return describe_raised_reserves(self.settings, self.rules, (preset.settings, preset.rules), window)

    def _find_stage(self, name: str) -> int:
        names = [stage_name for stage_name, _ in self.stages]
        if name not in names:
            raise UnknownPolicy(f"policy {self.name!r} has no stage {name!r}; it has: {', '.join(names)}")
        return names.index(name)


_STAGE_HINT = "a stage is a function that takes a PlanBuilder and returns it, with its decisions added"


def plan_request(
    state: ConversationState, target: Target, policy: Policy = Policy(), inputs: PlanInputs = PlanInputs()
) -> Plan:
    """Return the plan of the next request of ``state``. Costs what is new since the last one."""
    plan, builder, request = _run_stages(state, target, policy, inputs)
    repair, normalized_prefix = normalize_projection(builder.state, builder.target.dialect)
    breakpoint_options = choose_cache_breakpoints(
        restore_coverage_before_retry(builder.state, request), repair, builder.target, builder.settings
    )
    options = replace(breakpoint_options, max_tokens=compute_output_limit(builder))
    return replace(
        plan,
        state=replace(plan.state, view=replace(plan.state.view, normalized_prefix=normalized_prefix)),
        normalization=repair,
        options=options,
    )


def plan_without_normalization(
    state: ConversationState, target: Target, policy: Policy = Policy(), inputs: PlanInputs = PlanInputs()
) -> Plan:
    """Return the plan of the next request without repairs, markers and options: what gives way, and how much is left.

    It is for requests that are planned afterwards and never sent: half the work of a plan is in how it is sent.
    """
    plan, _, _ = _run_stages(state, target, policy, inputs)
    return plan


def _run_stages(
    state: ConversationState, target: Target, policy: Policy, inputs: PlanInputs
) -> tuple[Plan, PlanBuilder, RequestEntry]:
    """Return the plan as far as its reductions go, the draft that made them, and the request it is for."""
    settings = policy.settings
    configured_window = target.limits.window
    state = apply_entry(state, Entry("frame", None, target.setup))
    target = apply_learned_limits(target, state, settings)
    budget, notices = check_budget(target, settings, policy.rules)
    target = apply_window_cap(target, settings)
    notices = (*notices, *(Notice(RESERVE_FLOOR_RULE, why) for why in policy.describe_raised_reserves(budget.window)))
    builder = PlanBuilder(state, target, settings, inputs, budget, policy.rules, notices=notices)
    before = builder.estimated_tokens
    for name, stage in policy.stages:
        builder = stage(builder)
        if not isinstance(builder, PlanBuilder):
            raise TypeError(
                f"stage {name!r} of policy {policy.name!r} returned a {type(builder).__name__}; {_STAGE_HINT}"
            )
    builder = _check_fit(builder)
    request = RequestEntry(
        compute_prefix_digest(builder.state),
        len(state.history.sized_messages),
        target.model,
        configured_window,
        target.api,
    )
    plan = Plan(
        state=_record_plan(state, builder, request),
        record=builder.record,
        compaction=builder.compaction,
        blobs=builder.blobs,
        summary_request=builder.summary_request,
        window=target.limits.window,
        before=before,
        after=builder.estimated_tokens,
        notices=builder.notices,
    )
    return plan, builder, request


def _check_fit(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with a notice where even as planned the request is larger than what the model takes.

    Raises ``WindowTooSmall`` where no other plan could make it fit.
    """
    limits = builder.target.limits
    max_tokens = min(limits.window, limits.max_input or limits.window)
    if builder.estimated_tokens + builder.settings.reserve.min <= max_tokens:
        return builder
    min_tokens = estimate_irreducible_tokens(builder.state, builder.target, builder.settings)
    if min_tokens + builder.settings.reserve.min > limits.window:
        raise WindowTooSmall(
            f"No request fits: the least that can be sent is about {min_tokens:,} tokens (system, tools, the "
            "newest message "
            f"and open calls, cut short), an answer needs {builder.settings.reserve.min:,}, and the window has "
            f"{limits.window:,} ({limits.window_source}). Use a larger window, or send less of these."
        )
    if builder.estimated_tokens <= max_tokens:
        return builder
    why = (
        f"about {builder.estimated_tokens:,} tokens will be sent where {max_tokens:,} fit; use a model with a "
        "larger window"
    )
    return builder.add_notice(OVER_WINDOW_RULE, why)


def compute_output_limit(builder: PlanBuilder) -> int | None:
    """Return the most tokens the answer may have, where that is less than the caller asked for."""
    limits = builder.target.limits
    requested_tokens = limits.requested_output
    if requested_tokens is None:
        return None
    remaining = builder.budget.window - builder.upper_estimate
    max_tokens = min(
        requested_tokens, limits.max_output or requested_tokens, max(remaining, builder.settings.reserve.min)
    )
    return max_tokens if max_tokens < requested_tokens else None


def _record_plan(state: ConversationState, builder: PlanBuilder, request: RequestEntry) -> ConversationState:
    """Return ``state`` with what the draft decided as the log will hold it: a decision, a compaction, a request."""
    if builder.record:
        state = apply_entry(state, Entry(f"decision:{request.prefix_digest}", None, DecisionEntry(builder.record)))
    if builder.compaction is not None:
        state = apply_entry(state, Entry(f"compaction:{request.prefix_digest}", None, builder.compaction))
    return apply_entry(state, Entry("request", None, request))
