"""The validator under damage and load."""

from __future__ import annotations

import copy
import importlib.util
import json
import time
from pathlib import Path

import pytest

from holdfast.wire.rules import validate

ODD = (None, 5, "x", [], {}, [5], {"type": {}}, [{"type": []}])
"""Values that a field may hold in place of the one it should."""


def examples(name):
    """Return the kept and broken examples of a test module beside this one, the big ones left out."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    bodies = [body for pair in module.KEPT_AND_BROKEN.values() for body in pair]
    return [body for body in bodies if len(json.dumps(body)) < 2_000]


def places(value, path=()):
    """Yield the path of every value inside ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def damaged(body, path, odd):
    """Return ``body`` with ``odd`` in place of what stood at ``path``."""
    out = copy.deepcopy(body)
    *way, last = path
    holder = out
    for key in way:
        holder = holder[key]
    holder[last] = odd
    return out


@pytest.mark.parametrize(
    ("module", "api"), [("test_rules_anthropic", "anthropic"), ("test_rules_openai_chat", "openai-chat")]
)
def test_no_damage_makes_the_validator_fail(module, api):
    """Whatever stands in place of any value of any example, the validator answers with findings."""
    for body in examples(module):
        for path in places(body):
            for odd in ODD:
                assert isinstance(validate(damaged(body, path, odd), api), tuple)


def calling(turns):
    """Return a conversation of calls and results that is fine but for one broken id in each turn."""
    messages = [{"role": "user", "content": "x"}]
    for turn in range(turns):
        use = {"type": "tool_use", "id": f"t{turn}", "name": "ls", "input": {}}
        answer = {"type": "tool_result", "tool_use_id": f"u{turn}", "content": "ok"}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    return json.dumps({"messages": messages}).encode()


def spent(body):
    """Return the least processor time of three validations."""
    times = []
    for _ in range(3):
        start = time.process_time()
        assert len(validate(body, "anthropic")) >= 1_000
        times.append(time.process_time() - start)
    return min(times)


def test_the_time_grows_with_the_body():
    """Eight times the messages, all of them wrong, take well under twenty-five times as long."""
    assert spent(calling(4_000)) < 25 * spent(calling(500))
