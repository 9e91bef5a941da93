"""Which fields of a session's requests are sent changed, by which rule and since when; the log knows all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.describe import format_time
from holdfast.state.calibration.model_stats import list_nonempty_model_stats
from holdfast.state.changed_options import ChangedOption
from holdfast.state.codec.reading import convert_value
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import NOTE_FIELDS, NOTE_OPTIONS, NoteEntry
from holdfast.state.field_lessons import FieldLesson, describe_field_lesson

LESSON_RULE = "field"
"""Rule of a change that a server's refusal taught; others are the names of lint rules."""
MAX_CHANGE_LINES = 20
"""Lines about changed fields that one report prints. Chosen by judgement: most sessions have fewer than five."""


class FieldChange(Struct, frozen=True, omit_defaults=True):
    """One field that requests have in another form than their client wrote it, or not at all."""

    rule: str
    """The rule that the field breaks; ``field`` if a server taught it by refusing the field."""
    path: str
    what: str
    """What is done about the field; for a rule, what was wrong too."""
    since: int | None = None
    """When it was changed for the first time, in ms since 1970; None if that is unknown."""
    model: str = ""
    server: str = ""
    """The server that refused the field; empty for a rule."""
    sessions: int = 1
    """Sessions that have the same change, in a sum of several."""


def list_changed_fields(state: ConversationState) -> tuple[FieldChange, ...]:
    """List the fields that requests of the branch were sent with changed, for each model that it asked.

    What a refusal taught is listed also after its 24 hours, when the field is sent as it is again: ``since`` tells.
    """
    changes = []
    for stats in list_nonempty_model_stats(state):
        limits = stats.learned_limits
        for option in limits.changed_options:
            changes.append(_make_option_change(option, stats.model))
        for lesson in limits.field_lessons:
            changes.append(_make_lesson_change(lesson, stats.model))
    return tuple(changes)


def list_message_field_changes(state: ConversationState, role: str) -> tuple[FieldChange, ...]:
    """List the fields that messages of ``role`` are sent with changed because a server refused them."""
    changes = []
    for stats in list_nonempty_model_stats(state):
        for lesson in stats.learned_limits.field_lessons:
            is_in_elements = len(lesson.path) > 1 and bool(lesson.element_kinds) and lesson.path[0] != "tools"
            if is_in_elements and lesson.element_kinds[0] in ("", role):
                changes.append(_make_lesson_change(lesson, stats.model))
    return tuple(changes)


def sum_field_changes(changes: Iterable[FieldChange]) -> tuple[FieldChange, ...]:
    """Merge equal changes of several sessions, with the number of sessions and the earliest time."""
    merged: dict[tuple[str, ...], FieldChange] = {}
    for change in changes:
        key = (change.rule, change.path, change.what, change.model, change.server)
        known = merged.get(key)
        if known is not None:
            times = [at for at in (known.since, change.since) if at is not None]
            sessions = known.sessions + change.sessions
            change = replace(known, since=min(times, default=None), sessions=sessions)  # noqa: PLW2901
        merged[key] = change
    return tuple(merged.values())


def _make_option_change(option: ChangedOption, model: str) -> FieldChange:
    return FieldChange(option.rule, option.path, option.what, option.since or None, model)


def _make_lesson_change(lesson: FieldLesson, model: str) -> FieldChange:
    since = lesson.learned_at or None
    return FieldChange(LESSON_RULE, lesson.place, describe_field_lesson(lesson), since, model, lesson.server)


# -- in words ----------------------------------------------------------------------------------------------------------


def describe_field_change(change: FieldChange) -> str:
    """Describe a change on one line: the field, what is done, why, for which model and since when."""
    what = clean_single_line(change.what)
    if change.rule == LESSON_RULE:
        text = f"{what}: {clean_single_line(change.server) or 'the server'} refused it"
    else:
        text = f"{clean_single_line(change.path)} ({clean_single_line(change.rule)}): {what}"
    if change.model:
        text += f"; {clean_single_line(change.model)}"
    if change.since is not None:
        text += f", since {format_time(change.since)}"
    if change.sessions > 1:
        text += f", in {format_count(change.sessions, 'session')}"
    return text


def list_change_lines(changes: Sequence[FieldChange]) -> list[str]:
    """Return the lines that a report prints about ``changes``, with a head; none if there are none."""
    if not changes:
        return []
    lines = [f"{format_count(len(changes), 'field')} changed because the provider refuses what the client sends:"]
    lines += [f"  {describe_field_change(change)}" for change in changes[:MAX_CHANGE_LINES]]
    if len(changes) > MAX_CHANGE_LINES:
        lines.append(f"  … {len(changes) - MAX_CHANGE_LINES:,} more; --json lists all")
    return lines


def describe_change_note(note: NoteEntry) -> str | None:
    """Describe a note about changed fields in words; None for any other note, and for one that cannot be read."""
    try:
        if note.reason == NOTE_OPTIONS:
            options = convert_value(note.data.get("options"), tuple[ChangedOption, ...])
            changes = [_make_option_change(option, "") for option in options]
        elif note.reason == NOTE_FIELDS:
            lessons = convert_value(note.data.get("lessons"), tuple[FieldLesson, ...])
            new_count = convert_value(note.data.get("new", len(lessons)), int)
            changes = [_make_lesson_change(lesson, "") for lesson in lessons[len(lessons) - new_count :]]
            if not changes:
                remaining = ", ".join([describe_field_lesson(lesson) for lesson in lessons]) or "nothing"
                return (
                    f"a change of a field did not help and is taken back; still changed: {clean_single_line(remaining)}"
                )
        else:
            return None
    except (ValueError, TypeError):
        return None
    return "; ".join([describe_field_change(replace(change, since=None)) for change in changes])
