"""One recorded session through the policies asked for: from a file's name to the rows of its report."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.files import content
from holdfast.cli.output.errors import EXPECTED, reason
from holdfast.cli.output.terminal import clean, many
from holdfast.cli.recordings import Source
from holdfast.cli.replay.dump import Bodies, Dump
from holdfast.config import Catalog, target
from holdfast.errors import FormatError, WindowTooSmall
from holdfast.formats import Recording, read
from holdfast.planning.budget import guard, measure_room
from holdfast.planning.builder import Draft
from holdfast.planning.pipeline import Policy
from holdfast.planning.settings import Settings
from holdfast.planning.stages.compaction import trigger
from holdfast.providers.recognize import APIS
from holdfast.replay.measure import (
    BUDGETS,
    Setting,
    Study,
    measure_cuts,
    measure_policy,
    target_at_cuts,
    usable,
    with_window,
)
from holdfast.replay.report import OURS, Row, Subject, strange_factor
from holdfast.replay.session import Session, session_of
from holdfast.replay.tokenizer import tokenizer
from holdfast.state.branch.branch import Branch
from holdfast.state.target import Target, World

DEFAULT_FRAME = 10_000
"""Tokens assumed of system prompt and tools where the record has none (METRICS, "Frame")."""
_MANY = 5
"""Damaged lines that are told one by one."""


class Order(Struct, frozen=True):
    """What is asked for, beside the files. ``frame`` and ``api`` are nothing when the record decides."""

    policies: tuple[Policy, ...]
    window: int
    catalog: Catalog
    model: str
    frame: int | None = None
    api: str | None = None
    cuts: bool = False
    points_of: str | None = None
    """The policy whose requests are kept for the picture."""


class FailedPolicy(Struct, frozen=True):
    """A policy that could not be replayed over a session that others could, and why."""

    policy: str
    error: str


class Report(Struct, frozen=True):
    """What came of one file: a row for each policy, or why there is none."""

    subject: Subject
    rows: tuple[Row, ...]
    failed: tuple[FailedPolicy, ...] = ()


class Ticking(Protocol):
    """Somebody who wants to know how far it is."""

    def begin(self, label: str, total: int) -> None:
        """Begin a part of ``total`` ticks."""

    def tick(self) -> None:
        """Tell that one more is done."""


def check(order: Order) -> None:
    """Raise ``WindowTooSmall`` where no session at all could be replayed like this."""
    place = target(order.api or APIS[0], order.model, catalog=order.catalog)
    for policy in sorted(order.policies, key=lambda policy: policy.name != OURS):
        try:
            fitted(policy, with_window(place, order.window, order.frame or 0))
        except WindowTooSmall:
            usual = DEFAULT_FRAME if order.frame is None else order.frame
            fitted(policy, with_window(place, order.window, usual))  # tells the numbers that most sessions have
            raise


def replayed(file: str, order: Order, waiting: Ticking) -> Report:
    """Return the report on ``file``; raises ``HoldfastError`` or ``OSError`` where it cannot be replayed."""
    return reported(Source(file, lambda: read(content(file))), order, waiting)


def reported(source: Source, order: Order, waiting: Ticking, dump: Dump | None = None) -> Report:
    """Return the report on one session of a file; raises as ``replayed`` does."""
    file, recording = source.name, source.read()
    api = order.api or _api(recording, order)
    session = session_of(recording, api)
    if not session.steps:
        said = many(len(session.slots), "message")
        raise FormatError(f"no answer of a model is recorded in it ({said}); nothing to replay")
    study = _study(session, api, order)
    bodies = dump.of(file) if dump else None
    rows: list[Row] = []
    errors: list[tuple[str, Exception]] = []
    for policy in order.policies:
        waiting.begin(f"{Path(file).name}  {policy.name}", len(session.steps) * (4 if order.cuts else 1))
        try:
            rows.append(_row(study, policy, order, waiting, bodies))
        except EXPECTED as error:
            errors.append((policy.name, error))
    if not rows:
        raise errors[-1][1]  # ours is the last where all were asked for
    failed = tuple([FailedPolicy(name, reason(error)) for name, error in errors])
    return Report(_subject(file, recording, study), tuple(rows), failed)


def _api(recording: Recording, order: Order) -> str:
    """Return the API that the model is called by, else the recording's own, else the first we know."""
    native = order.catalog.api(order.model)
    if native is not None:
        return native if native in APIS else "openai-chat"
    return recording.api if recording.api in APIS else APIS[0]


def _study(session: Session, api: str, order: Order) -> Study:
    frame = order.frame if order.frame is not None else session.frame.tokens or DEFAULT_FRAME
    place = with_window(target(api, order.model, catalog=order.catalog), order.window, frame)
    name, counter = tokenizer()
    return Study(session, Setting(order.window, frame, place, name, counter))


def _row(study: Study, policy: Policy, order: Order, waiting: Ticking, bodies: Bodies | None) -> Row:
    """Return the row of ``policy``; raises where its requests cannot be made, but not for a figure at cuts alone."""
    policy, notes = fitted(policy, study.setting.target)
    numbers = {step.index: number for number, step in enumerate(study.session.steps)}
    with bodies.of(policy.name) if bodies else nullcontext() as write:
        keep = (lambda step, body: write(numbers[step], body)) if write else None
        measured = measure_policy(study, policy, waiting.tick, keep)
    row = Row(replace(measured, points=measured.points if policy.name == order.points_of else ()), notes=notes)
    return _with_cuts(row, study, policy, waiting) if order.cuts else row


def _with_cuts(row: Row, study: Study, policy: Policy, waiting: Ticking) -> Row:
    """Return ``row`` with what the policy keeps at cuts, as far as that can be measured."""
    kept = measure_cuts(study, _unguarded(policy), waiting.tick)
    over = [f"over at {one.over} cuts of {int(budget):,}" for budget, one in kept.items() if one.over]
    return replace(
        row,
        cuts={budget: one.score for budget, one in kept.items()},
        notes=(*row.notes, *_degenerate_at_cuts(study, policy), *over),
        missing={budget: one.missing for budget, one in kept.items() if one.missing},
    )


def _subject(file: str, recording: Recording, study: Study) -> Subject:
    session, setting = study.session, study.setting
    last = session.steps[-1].index
    return Subject(
        file=file,
        format=recording.format,
        window=setting.window,
        usable=usable(setting.window),
        frame=setting.frame,
        api=setting.target.api,
        model=setting.target.model,
        tokenizer=setting.tokenizer,
        factor=study.factor,
        messages=len(session.slots),
        steps=len(session.steps),
        peak=setting.frame + sum(study.tokens(slot) for slot in session.slots[:last]),
        damage=(*_damage(recording), *strange_factor(study.factor), *_unpriced(setting.target)),
    )


def _unpriced(target: Target) -> tuple[str, ...]:
    """Return a note where nobody told what the model costs."""
    if not target.prices.assumed:
        return ()
    return (
        f"no price of {clean(target.model)} is known, so nothing is said of cost: a [[price]] in holdfast.toml is one",
    )


def _damage(recording: Recording) -> tuple[str, ...]:
    """Return what is wrong with the file, line by line as far as that is short."""
    told = [clean(problem.told) for problem in recording.problems[:_MANY]]
    more = len(recording.problems) - len(told)
    return (*told, f"and {more} more lines") if more else tuple(told)


# -- policies under their own minimum ----------------------------------------------------------------------------------


def fitted(policy: Policy, place: Target) -> tuple[Policy, tuple[str, ...]]:
    """Return ``policy`` as it can run in this window, with a note where it is below its own minimum.

    Ours refuses; a preset runs as it is, marked ``degenerate`` (METRICS). ``WindowTooSmall`` where nothing fits.
    """
    try:
        guard(place, policy.settings)
    except WindowTooSmall as error:
        if policy.name == OURS:
            raise
        if measure_room(place, policy.settings).size <= 0:
            window, frame = place.limits.window, place.frame.tokens
            raise WindowTooSmall(
                f"a window of {window:,} tokens has no room for messages beside a frame of {frame:,} and the answer; "
                "give a larger --window or a smaller --frame"
            ) from None
        return _unguarded(policy), (f"degenerate: {str(error).partition('. ')[0]}",)
    why = _degenerate(policy.settings, place)
    return policy, (f"degenerate: {why}",) if why else ()


def _unguarded(policy: Policy) -> Policy:
    """Return ``policy`` without a smallest window of its own."""
    return replace(policy, settings=replace(policy.settings, window_min=0, room_min=0))


def _degenerate(settings: Settings, place: Target) -> str:
    """Return why the policy would have to compact all the time in this window, or nothing."""
    if settings.compact != "summary":
        return ""
    limit = trigger(Draft(Branch(), place, settings, World(), measure_room(place, settings)))
    room = limit - place.frame.tokens
    if room <= 0:
        return f"it compacts at {limit:,} tokens, and the frame alone is {place.frame.tokens:,}"
    if settings.tail == "tokens" and settings.tail_tokens >= room:
        return f"it keeps {settings.tail_tokens:,} tokens, and compacts when there are {room:,} beside the frame"
    return ""


def _degenerate_at_cuts(study: Study, policy: Policy) -> tuple[str, ...]:
    """Return a note on the budgets of the cuts at which the policy is below its own minimum."""
    places = {room: target_at_cuts(study.setting, room) for room in BUDGETS}
    found = [f"{room:,}" for room, place in places.items() if _degenerate(policy.settings, place)]
    return (f"degenerate at cuts of {', '.join(found)}",) if found else ()
