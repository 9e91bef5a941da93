"""The resources that the sessions of an engine share are read by its loop and its worker at the same time."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from holdfast.config import load_shipped_catalog
from holdfast.engine.engine_resources import EngineResources
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import ScriptedUpstream

API_AND_MODEL = "anthropic", "claude-opus-5-5"


@pytest.mark.uncounted
@pytest.mark.parametrize(("is_known", "step"), [(True, 1), (False, 17)])
def test_resolve_target_returns_the_old_or_the_new_catalog_while_it_changes(is_known, step, run_interleaved):
    """A lookup during ``set_catalog`` returns the old or the new window, and the next lookup returns the new one."""
    for at in count(1, step):
        resources = EngineResources(MemoryStore(), ScriptedUpstream([]), window=20_000)
        if is_known:
            resources.resolve_target(*API_AND_MODEL)
        changes = partial(resources.set_catalog, load_shipped_catalog(), 50_000)
        target, interleaved = run_interleaved(partial(resources.resolve_target, *API_AND_MODEL), changes, at)
        assert target.limits.window in (20_000, 50_000)
        assert resources.resolve_target(*API_AND_MODEL).limits.window == (50_000 if interleaved else 20_000)
        if not interleaved:
            break
    assert at > 3
