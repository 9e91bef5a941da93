"""Values of a wrong type that a program passes to the engine are errors that name them."""

from __future__ import annotations

import pytest

from holdfast import Engine, get_target
from holdfast.errors import ConfigError
from holdfast.hooks import SummaryWriter
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import ScriptedUpstream

TARGET = get_target("anthropic", "claude-sonnet-4-5")
pytestmark = pytest.mark.anyio


async def test_open_names_the_wrong_field_of_a_summary_writer():
    """A writer is checked when the engine opens, not when its first summary is due."""
    writer = SummaryWriter(ScriptedUpstream([]), target="claude-haiku")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"SummaryWriter\.target is of type str; give a value of type Target"):
        async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=TARGET, writers=[writer]):
            pass


async def test_render_body_takes_only_a_prepared_request():
    """Anything but the value of ``prepare`` is a ``TypeError``."""
    async with Engine.open(MemoryStore(), upstream=ScriptedUpstream([]), target=TARGET) as engine:
        session = await engine.session("main")
        with pytest.raises(TypeError, match="prepared_request is of type int"):
            session.render_body(5)  # type: ignore[arg-type]
