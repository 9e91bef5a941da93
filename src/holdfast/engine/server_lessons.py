"""The lessons of this process about each server: one refusal of a field is enough for all sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

from holdfast.state.field_lessons import FieldLesson, add_field_lessons, remove_field_lessons

FIELD_LESSON_HOURS = 24
"""Hours after which a lesson is no longer believed: then the field is sent again, and a refusal teaches it anew.

Servers change: Anthropic's betas went from refused to accepted on Bedrock within weeks (claude-code#49370, #49648). One
refused request a day is cheap. Chosen by judgement.
"""
_MS_PER_HOUR = 3_600_000
MAX_SERVERS = 256
"""Pairs of server and model that are remembered; the one that was used longest ago is forgotten first."""
_MemoryKey: TypeAlias = tuple[str, str, str]


class ServerLessons:
    """Lessons by server, API and model."""

    def __init__(self) -> None:
        self._lessons: OrderedDict[_MemoryKey, tuple[FieldLesson, ...]] = OrderedDict()

    def get(self, server: str, api: str, model: str) -> tuple[FieldLesson, ...]:
        """Return the lessons about ``model`` at ``server``; empty for a server without a name."""
        key = (server, api, model)
        if not server or key not in self._lessons:
            return ()
        self._lessons.move_to_end(key)
        return self._lessons[key]

    def add(self, server: str, api: str, model: str, lessons: Iterable[FieldLesson]) -> None:
        """Remember ``lessons``, each in place of an older one about the same field."""
        if not server:
            return
        key = (server, api, model)
        self._lessons[key] = add_field_lessons(self._lessons.get(key, ()), lessons)
        self._lessons.move_to_end(key)
        if len(self._lessons) > MAX_SERVERS:
            self._lessons.popitem(last=False)

    def remove(self, server: str, api: str, model: str, lessons: Iterable[FieldLesson]) -> None:
        """Forget ``lessons``."""
        key = (server, api, model)
        if key in self._lessons:
            self._lessons[key] = remove_field_lessons(self._lessons[key], lessons)


def is_lesson_in_force(lesson: FieldLesson, server: str, now: int) -> bool:
    """Return whether ``lesson`` is about ``server`` and not too old; ``now`` is in ms since 1970."""
    return lesson.server == server and now - lesson.learned_at < FIELD_LESSON_HOURS * _MS_PER_HOUR
