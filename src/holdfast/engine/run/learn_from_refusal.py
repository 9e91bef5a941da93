"""Learn from a refusal that names a field: leave it out, fill it or lower it, in this and all later requests there.

A lesson is in the log of its session, so that it survives a restart and goes along with a fork, and in the memory of
the process, so that other sessions need no refusal of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast import events
from holdfast.engine.server_lessons import FIELD_LESSON_HOURS, is_lesson_in_force
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.upstream import BETA_HEADER, Upstream, UpstreamRequest, get_server_name, list_betas
from holdfast.providers.errors.named_fields import NamedField
from holdfast.providers.requests.adapt_body import (
    apply_field_lessons,
    find_wrong_lessons,
    make_field_lessons,
    remove_betas,
)
from holdfast.state.field_lessons import (
    FieldLesson,
    add_field_lessons,
    describe_field_lesson,
    remove_field_lessons,
    stamp_field_lessons,
)
from holdfast.state.target import Target

FIELD_RULE = "field"
"""Rule of the notices about fields that a server refused."""
_FORGOTTEN_NOTICE = "the server refuses the change too, so it is taken back: run `holdfast lint` on the request"


def find_field_lessons(
    named_fields: Sequence[NamedField], upstream: Upstream, upstream_request: UpstreamRequest
) -> tuple[FieldLesson, ...]:
    """Return what to do about the fields that a refusal of ``upstream_request`` names.

    Only what would change the request: a field that was left out already is not left out again.
    """
    if not named_fields:
        return ()
    asked = _list_asked_betas(upstream, upstream_request)
    lessons = []
    for lesson in make_field_lessons(named_fields, upstream_request.body, asked):
        changes_body = apply_field_lessons(upstream_request.body, (lesson,)) is not upstream_request.body
        if changes_body or (lesson.action == "beta" and lesson.value in asked):
            lessons.append(lesson)
    return tuple(lessons)


async def apply_known_lessons(
    runtime: SessionRuntime, target: Target, upstream: Upstream, upstream_request: UpstreamRequest
) -> UpstreamRequest:
    """Return ``upstream_request`` as its server is known to take it.

    A lesson of another session that changes the request is recorded in this one too, and told.
    """
    server, now = get_server_name(upstream), runtime.resources.clock()
    own_lessons = _select_own_lessons(runtime, server, now)
    shared_lessons = []
    for lesson in runtime.resources.server_lessons.get(server, target.api, target.model):
        is_known = any(lesson.is_about_same_field(own) for own in own_lessons)
        if not is_known and is_lesson_in_force(lesson, server, now):
            shared_lessons.append(lesson)
    changed_request = _apply_lessons(upstream_request, own_lessons)
    adopted = []
    for lesson in shared_lessons:
        next_request = _apply_lessons(changed_request, (lesson,))
        has_beta = lesson.action == "beta" and lesson.value in _list_asked_betas(upstream, changed_request)
        if has_beta or next_request.body is not changed_request.body:
            adopted.append(lesson)
            changed_request = next_request
    if adopted:
        await _record_lessons(runtime, adopted)
        _emit_lessons(runtime, target, adopted, "the server refused this before")
    return changed_request


async def learn_field_lessons(
    runtime: SessionRuntime, target: Target, upstream: Upstream, lessons: Sequence[FieldLesson], failure_text: str
) -> None:
    """Record and announce ``lessons``."""
    server = get_server_name(upstream)
    stamped_lessons = stamp_field_lessons(lessons, server, runtime.resources.clock())
    await _record_lessons(runtime, stamped_lessons)
    runtime.resources.server_lessons.add(server, target.api, target.model, stamped_lessons)
    _emit_lessons(runtime, target, stamped_lessons, failure_text)


async def forget_wrong_lessons(
    runtime: SessionRuntime, target: Target, upstream: Upstream, named_fields: Sequence[NamedField]
) -> None:
    """Take back the lessons about ``named_fields``: the server refuses these fields all the same."""
    server, journal = get_server_name(upstream), runtime.journal
    wrong_lessons = find_wrong_lessons(named_fields, _select_own_lessons(runtime, server, runtime.resources.clock()))
    if not wrong_lessons:
        return
    runtime.resources.server_lessons.remove(server, target.api, target.model, wrong_lessons)

    def record_remaining() -> None:
        known = journal.state.usage.learned_limits.field_lessons
        journal.record_field_lessons(remove_field_lessons(known, wrong_lessons))

    await runtime.resources.run_in_worker(record_remaining)
    places = ", ".join([f"`{lesson.place}`" for lesson in wrong_lessons])
    runtime.emit_event(events.NoticeGiven(runtime.key, FIELD_RULE, f"{places}: {_FORGOTTEN_NOTICE}"))


def _select_own_lessons(runtime: SessionRuntime, server: str, now: int) -> tuple[FieldLesson, ...]:
    """Return the lessons in this session's log that hold for ``server`` now."""
    lessons = []
    for lesson in runtime.journal.state.usage.learned_limits.field_lessons:
        if is_lesson_in_force(lesson, server, now):
            lessons.append(lesson)
    return tuple(lessons)


def _apply_lessons(upstream_request: UpstreamRequest, lessons: Sequence[FieldLesson]) -> UpstreamRequest:
    """Return ``upstream_request`` with ``lessons`` applied to its body and its headers; the same if they do nothing."""
    if not lessons:
        return upstream_request
    headers = dict(upstream_request.headers)
    betas = headers.pop(BETA_HEADER, "")
    kept_betas = remove_betas(betas, lessons)
    if kept_betas:
        headers[BETA_HEADER] = kept_betas
    refused = [lesson.value for lesson in lessons if lesson.action == "beta"]
    return replace(
        upstream_request,
        body=apply_field_lessons(upstream_request.body, lessons),
        headers=headers,
        refused_betas=(*upstream_request.refused_betas, *refused),
    )


def _list_asked_betas(upstream: Upstream, upstream_request: UpstreamRequest) -> tuple[str, ...]:
    """Return the betas that the headers of the request ask for, those of its upstream included."""
    own_betas = upstream_request.headers.get(BETA_HEADER, "").split(",")
    asked = []
    for beta in (*list_betas(upstream), *own_betas):
        name = beta.strip()
        if name and name not in upstream_request.refused_betas:
            asked.append(name)
    return tuple(dict.fromkeys(asked))


async def _record_lessons(runtime: SessionRuntime, lessons: Sequence[FieldLesson]) -> None:
    journal = runtime.journal

    def record() -> None:
        known = journal.state.usage.learned_limits.field_lessons
        journal.record_field_lessons(add_field_lessons(known, lessons))

    await runtime.resources.run_in_worker(record)


def _emit_lessons(runtime: SessionRuntime, target: Target, lessons: Sequence[FieldLesson], reason: str) -> None:
    for lesson in lessons:
        server = lesson.server or "this server"
        why = (
            f"{describe_field_lesson(lesson)} in requests for {target.model or 'this model'} to {server} for"
            f" {FIELD_LESSON_HOURS} hours, since {reason}; change the client's settings if it should not send this"
        )
        runtime.emit_event(events.NoticeGiven(runtime.key, FIELD_RULE, why, lesson.place))
