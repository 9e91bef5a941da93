"""The line that most reports begin with."""

from __future__ import annotations

from rich.text import Text

from holdfast.messages.text.single_line import clean_single_line
from holdfast.store.base import SessionInfo


def format_session_line(info: SessionInfo) -> Text:
    """Format a session's id and title, the first line of most reports."""
    title = clean_single_line(info.title)
    return Text.assemble((clean_single_line(info.key), "bold"), f"  {title}" if title else "")
