"""The pipeline: stages in order, from a branch to the plan of its next request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from holdfast.errors import ConfigError, UnknownPolicy, WindowTooSmall, check_types
from holdfast.normalize.projection import repair_projection
from holdfast.planning.budget import guard, in_window, learned
from holdfast.planning.builder import Draft
from holdfast.planning.presets.precheck import precheck
from holdfast.planning.presets.presets import PRESETS
from holdfast.planning.presets.triggers import find_raised_reserves
from holdfast.planning.presets.truncate_lines import limit_lines
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import allowed, check, converted
from holdfast.planning.stages.cache_breakpoints import breakpoints
from holdfast.planning.stages.compaction import compact
from holdfast.planning.stages.escape_tags import neutralise
from holdfast.planning.stages.history_limit import history_limit, limit_history, slide
from holdfast.planning.stages.last_resort import relieve
from holdfast.planning.stages.media import limit_media
from holdfast.planning.stages.overflow_steps import climb
from holdfast.planning.stages.prune import prune
from holdfast.planning.stages.smallest_request import floor
from holdfast.planning.stages.tool_results import limit_results
from holdfast.planning.stages.truncate import truncate
from holdfast.state.branch.branch import Branch, as_found, extend
from holdfast.state.branch.view import prefix_basis
from holdfast.state.entries import Decision, Entry, Request
from holdfast.state.plan import Notice, Plan
from holdfast.state.target import Target, World

Stage: TypeAlias = Callable[[Draft], Draft]
"""A pure step of planning: takes a draft and returns it with decisions added (``draft.decide``, ``draft.compact``)."""

OVER_WINDOW = "over-window"
"""Rule of the notice that a request does not fit the window, whatever the policy could do."""
RESERVE_FLOOR = "reserve-floor"
"""Rule of the notice that more of the window is held back than was configured."""

_USUAL = Settings()


def _setting(name: str, value: object) -> Any:
    """Return ``value`` as setting ``name`` holds it; ``ConfigError`` where there is no such setting or value."""
    if name not in Settings.__struct_fields__:
        known = ", ".join(get_close_matches(name, Settings.__struct_fields__) or Settings.__struct_fields__)
        raise ConfigError(f"there is no setting {name!r}; did you mean one of: {known}")
    try:
        return converted(name, value)
    except ValueError as error:
        raise ConfigError(f"{name} = {value!r}: {error}; allowed is {allowed(name)}") from error


def _known(settings: Settings) -> Settings:
    """Return ``settings``, which somebody may have made by hand, with each value as it is held."""
    given = {name: getattr(settings, name) for name in Settings.__struct_fields__}
    chosen = {name: value for name, value in given.items() if value is not getattr(_USUAL, name)}
    return replace(settings, **{name: _setting(name, value) for name, value in chosen.items()})


class Policy(Struct, frozen=True):
    """Settings and ordered, named stages. ``replace`` and ``before`` return changed copies."""

    name: str = "holdfast"
    settings: Settings = Settings()
    stages: tuple[tuple[str, Stage], ...] = (
        ("history", limit_history),
        ("results", limit_results),
        ("lines", limit_lines),
        ("tags", neutralise),
        ("media", limit_media),
        ("prune", prune),
        ("slide", slide),
        ("precheck", precheck),
        ("rungs", climb),
        ("compaction", compact),
        ("truncate", truncate),
        ("relief", relieve),
    )

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` for settings, and for stages, that are none."""
        wanted = {"policy.settings": (self.settings, Settings), "policy.stages": (self.stages, Sequence)}
        check_types(ConfigError, **wanted)
        force_setattr(self, "settings", _known(self.settings))
        for at, given in enumerate(self.stages):
            match given:
                case (str(name), stage):
                    if not callable(stage):
                        raise ConfigError(f"stage {name!r} is of type {type(stage).__name__}; {_STAGE}")
                case _:
                    kind = type(given).__name__
                    raise ConfigError(f"policy.stages[{at}] is of type {kind}; give a pair of a name and a stage")

    @classmethod
    def preset(cls, name: str) -> Policy:
        """Return the policy called ``name``; raises ``UnknownPolicy`` with the list."""
        check_types(UnknownPolicy, name=(name, str))
        settings = PRESETS.get(name)
        if settings is None:
            raise UnknownPolicy(f"no policy is called {name!r}; there are: {', '.join(PRESETS)}")
        return cls(name, settings)

    def replace(self, name: str, stage: Stage) -> Policy:
        """Return the policy with ``stage`` in place of the one called ``name``."""
        self._place(name)
        return replace(self, stages=tuple((old, stage if old == name else kept) for old, kept in self.stages))

    def before(self, name: str, new: str, stage: Stage) -> Policy:
        """Return the policy with ``stage``, called ``new``, in front of the one called ``name``."""
        at = self._place(name)
        if new in dict(self.stages):
            raise ConfigError(f"policy {self.name!r} has a stage {new!r} already; give this one another name")
        return replace(self, stages=(*self.stages[:at], (new, stage), *self.stages[at:]))

    def with_settings(self, **changes: Any) -> Policy:
        """Return the policy with some settings changed; ``ConfigError`` for what is none, or what cannot be."""
        settings = replace(self.settings, **{name: _setting(name, value) for name, value in changes.items()})
        for problem in check(settings):
            if changes.keys() & {*problem.settings}:
                raise ConfigError(problem.why)
        return replace(self, settings=settings)

    def for_session(self, key: str) -> Policy:
        """Return the policy for the session called ``key``: it shows the user turns that its channel's limit says."""
        check_types(ConfigError, key=(key, str))
        limit = history_limit(key, self.settings.channels)
        return self if limit is None else self.with_settings(history_turns=limit)

    def _place(self, name: str) -> int:
        names = [known for known, _ in self.stages]
        if name not in names:
            raise UnknownPolicy(f"policy {self.name!r} has no stage {name!r}; it has: {', '.join(names)}")
        return names.index(name)


_STAGE = "a stage is a function that takes a Draft and returns it, with its decisions added"


def advance(branch: Branch, target: Target, policy: Policy = Policy(), world: World = World()) -> Plan:
    """Return the plan of the next request of ``branch``. Costs what is new since the last one."""
    plan, draft, request = _planned(branch, target, policy, world)
    repair, settled = repair_projection(draft.branch, draft.target.dialect)
    marked = breakpoints(as_found(draft.branch, request), repair, draft.target, draft.settings)
    options = replace(marked, max_tokens=output_limit(draft))
    return replace(plan, branch=replace(plan.branch, settled=settled), repair=repair, options=options)


def plan_reductions(branch: Branch, target: Target, policy: Policy = Policy(), world: World = World()) -> Plan:
    """Return the plan of the next request without repairs, markers and options: what gives way, and how much is left.

    It is for requests that are planned afterwards and never sent: half the work of a plan is in how it is sent.
    """
    plan, _, _ = _planned(branch, target, policy, world)
    return plan


def _planned(branch: Branch, target: Target, policy: Policy, world: World) -> tuple[Plan, Draft, Request]:
    """Return the plan as far as its reductions go, the draft that made them, and the request it is for."""
    settings = policy.settings
    believed = target.limits.window
    branch = extend(branch, Entry("frame", None, target.frame))
    target = learned(target, branch, settings)
    room, notices = guard(target, settings)
    target = in_window(target, settings)
    raised = find_raised_reserves(settings, PRESETS.get(policy.name, _USUAL), target.limits.window)
    notices = (*notices, *(Notice(RESERVE_FLOOR, why) for why in raised))
    draft = Draft(branch, target, settings, world, room, notices=notices)
    before = draft.estimate
    for name, stage in policy.stages:
        draft = stage(draft)
        if not isinstance(draft, Draft):
            raise TypeError(f"stage {name!r} of policy {policy.name!r} returned a {type(draft).__name__}; {_STAGE}")
    draft = _fitted(draft)
    request = Request(prefix_basis(draft.branch), len(branch.slots), target.model, believed, target.api)
    plan = Plan(
        branch=_recorded(branch, draft, request),
        record=draft.record,
        compaction=draft.compaction,
        blobs=draft.blobs,
        ask=draft.ask,
        window=target.limits.window,
        before=before,
        after=draft.estimate,
        notices=draft.notices,
    )
    return plan, draft, request


def _fitted(draft: Draft) -> Draft:
    """Return the draft with a notice where even as planned the request is larger than what the model takes.

    Raises ``WindowTooSmall`` where no other plan could make it fit.
    """
    limits = draft.target.limits
    most = min(limits.window, limits.max_input or limits.window)
    if draft.estimate + draft.settings.reserve_min <= most:
        return draft
    least = floor(draft.branch, draft.target, draft.settings)
    if least + draft.settings.reserve_min > limits.window:
        raise WindowTooSmall(
            f"No request fits: the least that can be sent is about {least:,} tokens (system, tools, the newest message "
            f"and open calls, cut short), an answer needs {draft.settings.reserve_min:,}, and the window has "
            f"{limits.window:,} ({limits.origin}). Use a larger window, or send less of these."
        )
    if draft.estimate <= most:
        return draft
    why = f"about {draft.estimate:,} tokens will be sent where {most:,} fit; use a model with a larger window"
    return draft.note(OVER_WINDOW, why)


def output_limit(draft: Draft) -> int | None:
    """Return the most tokens the answer may have, where that is less than the caller asked for."""
    limits = draft.target.limits
    asked = limits.asked_output
    if asked is None:
        return None
    left = draft.room.window - draft.at_most
    most = min(asked, limits.max_output or asked, max(left, draft.settings.reserve_min))
    return most if most < asked else None


def _recorded(branch: Branch, draft: Draft, request: Request) -> Branch:
    """Return ``branch`` with what the draft decided as the log will hold it: a decision, a compaction, a request."""
    if draft.record:
        branch = extend(branch, Entry(f"decision:{request.basis}", None, Decision(draft.record)))
    if draft.compaction is not None:
        branch = extend(branch, Entry(f"compaction:{request.basis}", None, draft.compaction))
    return extend(branch, Entry("request", None, request))
