"""What is recorded of events: every one has a name and its fields."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from holdfast.events import Event
from holdfast.telemetry.session_spans import _EVENT_FIELDS


@pytest.mark.parametrize("event_type", get_args(Event))
def test_every_event_is_recorded_with_fields_that_it_has(event_type):
    """A new event must say what of it is recorded; a field that is renamed must be renamed there too."""
    names = {field.name for field in msgspec.structs.fields(event_type)}
    assert set(_EVENT_FIELDS[event_type].values()) <= names
