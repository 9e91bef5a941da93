"""Counts in sentences for people."""

from __future__ import annotations


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 error``, ``2 errors``."""
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"
