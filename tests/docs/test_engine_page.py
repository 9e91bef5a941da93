"""The engine page names every event, outcome, hook and session method."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest

from holdfast import events
from holdfast.engine.hooks import Hooks
from holdfast.engine.session import Session

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text("utf-8")
NAMES = [
    *(event.__name__ for event in get_args(events.Event)),
    *events.COMPACTION_OUTCOMES,
    *(name for name in Hooks.__struct_fields__ if name != "patience"),
]
VERBS = ("ask", "run", "append", "compact", "undo", "branch", "recall", "prepare", "record", "report")


@pytest.mark.parametrize("name", NAMES)
def test_engine_page_names_every_event_outcome_and_hook(name):
    """Whatever a listener or a hook can receive is on the page."""
    assert name in PAGE


@pytest.mark.parametrize("verb", VERBS)
def test_engine_page_names_every_session_method(verb):
    """Each of these session methods is on the page and exists."""
    assert f"{verb}(" in PAGE
    assert inspect.isfunction(getattr(Session, verb))
