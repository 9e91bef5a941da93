"""What the sessions of an engine share is asked by its loop and by its worker at once."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from holdfast.config import load_shipped_catalog
from holdfast.engine.engine_resources import EngineResources
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import ScriptedUpstream

ASKED = "anthropic", "claude-opus-5-5"


@pytest.mark.uncounted
@pytest.mark.parametrize(("is_known", "step"), [(True, 1), (False, 17)])
def test_what_is_known_of_a_model_changes_while_it_is_asked(is_known, step, meanwhile):
    """Wherever the files are read again, who asks is told the old or the new, and who asks next the new."""
    for at in count(1, step):
        means = EngineResources(MemoryStore(), ScriptedUpstream([]), window=20_000)
        if is_known:
            means.resolve_target(*ASKED)
        changes = partial(means.set_catalog, load_shipped_catalog(), 50_000)
        found, changed = meanwhile(partial(means.resolve_target, *ASKED), changes, at)
        assert found.limits.window in (20_000, 50_000)
        assert means.resolve_target(*ASKED).limits.window == (50_000 if changed else 20_000)
        if not changed:
            break
    assert at > 3
