"""Databases of tools that Holdfast cannot read, recognized by their tables."""

from __future__ import annotations

from collections.abc import Collection


def recognize_foreign_database(tables: Collection[str]) -> str:
    """Return what a database with these tables is and what to do with it, or an empty string if it is unknown."""
    for marks, text in _KNOWN_DATABASES:
        if marks <= set(tables):
            return text
    return ""


_KNOWN_DATABASES: tuple[tuple[frozenset[str], str], ...] = ()
