"""Lessons about fields: what a server's refusal said about one field of a request, as a value that a log can keep.

A refusal that names a field ("Unknown parameter: 'store'") is a fact about the server, and holds for every later
request that has the field there. Servers change, so a lesson has a time and is not believed for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

FieldAction: TypeAlias = Literal["drop", "fill", "cap", "rename", "beta"]
"""Leave the field out · put ``value`` where it is missing or empty · lower a number to ``limit`` · give the field the
name in ``value`` · ask without the beta feature ``value``."""
ANY_ELEMENT = "*"
"""A step of a path that stands for every element of a list."""
ONLY_EMPTY = "null"
"""``FieldLesson.value`` of a field that is left out only where it is empty."""
MAX_FIELD_LESSONS = 64
"""Lessons that are kept for one model; the oldest go first. More than a body of any of the four APIs has options."""


class FieldLesson(Struct, frozen=True, omit_defaults=True):
    """What to do about one field in every request to one server."""

    action: FieldAction
    path: tuple[str, ...] = ()
    """Names from the body to the field, with ``ANY_ELEMENT`` for a list: ``("messages", "*", "name")``."""
    element_kinds: tuple[str, ...] = ()
    """For each ``ANY_ELEMENT`` of the path the role or type that an element must have; empty for any."""
    beside: str = ""
    """Another field that the field's object must have; empty for none."""
    value: str = ""
    """By action: the JSON to fill in, the new name of the field, or the beta. For ``drop``, ``ONLY_EMPTY`` if it is
    left out only where it is empty."""
    limit: int = 0
    """The most that a number may be; 0 for any action but ``cap``."""
    server: str = ""
    """Address of the server that refused the field, without anything secret; empty if it is not known."""
    learned_at: int = 0
    """When the server refused it, in ms since 1970."""

    @property
    def place(self) -> str:
        """The field as people read it: ``messages[].name``."""
        if self.action == "beta":
            return self.value
        return ".".join(self.path).replace(f".{ANY_ELEMENT}", "[]")

    @property
    def subject(self) -> tuple[object, ...]:
        """What the lesson is about at its server: a beta, or a field in elements of certain kinds."""
        if self.action == "beta":
            return ("beta", self.value)
        return (self.path, self.element_kinds)

    def is_about_same_field(self, other: FieldLesson) -> bool:
        """Return whether both lessons change the same field of requests to the same server."""
        return (self.server, self.subject) == (other.server, other.subject)


def find_new_lessons(lessons: Iterable[FieldLesson], tried: Iterable[FieldLesson]) -> tuple[FieldLesson, ...]:
    """Return those of ``lessons`` that are about none of the fields of ``tried``, or lower one of these further.

    A server that refuses a field in two ways cannot be satisfied by changing that field.
    """
    tried_limits = {lesson.subject: lesson.limit for lesson in tried}
    new_lessons = []
    for lesson in lessons:
        is_lower_cap = lesson.action == "cap" and lesson.limit < tried_limits.get(lesson.subject, 0)
        if lesson.subject not in tried_limits or is_lower_cap:
            new_lessons.append(lesson)
    return tuple(new_lessons)


def add_field_lessons(known: Iterable[FieldLesson], new: Iterable[FieldLesson]) -> tuple[FieldLesson, ...]:
    """Return ``known`` with the ``new`` lessons, each in place of an older one about the same field."""
    lessons = list(known)
    for lesson in new:
        lessons = [old for old in lessons if not old.is_about_same_field(lesson)]
        lessons.append(lesson)
    return tuple(lessons[-MAX_FIELD_LESSONS:])


def remove_field_lessons(known: Iterable[FieldLesson], gone: Iterable[FieldLesson]) -> tuple[FieldLesson, ...]:
    """Return ``known`` without the lessons about the fields of ``gone``."""
    remaining = []
    for lesson in known:
        if not any(lesson.is_about_same_field(other) for other in gone):
            remaining.append(lesson)
    return tuple(remaining)


def stamp_field_lessons(lessons: Iterable[FieldLesson], server: str, learned_at: int) -> tuple[FieldLesson, ...]:
    """Return ``lessons`` as learned from ``server`` at ``learned_at`` (ms since 1970)."""
    return tuple([replace(lesson, server=server, learned_at=learned_at) for lesson in lessons])


def describe_field_lesson(lesson: FieldLesson) -> str:
    """Return what is done about the field, as the end of a sentence that begins with the field's name."""
    match lesson.action:
        case "drop" if lesson.value == ONLY_EMPTY:
            return f"`{lesson.place}` is left out where it is empty"
        case "drop":
            return f"`{lesson.place}` is left out"
        case "fill":
            return f"`{lesson.place}` is filled with {lesson.value} where it is missing"
        case "cap":
            return f"`{lesson.place}` is lowered to {lesson.limit:,}"
        case "rename":
            return f"`{lesson.place}` is sent as `{lesson.value}`"
        case "beta":
            return f"the beta `{lesson.value}` is not asked for"
