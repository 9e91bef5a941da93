"""The switch: off nothing of OpenTelemetry is imported, on without the packages there is a clear error."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed (pip install 'holdfast[otel]')")


from holdfast.errors import ConfigError
from holdfast.proxy.settings import load_proxy_settings
from holdfast.telemetry.switch import (
    CONTENT_VARIABLE,
    STANDARD_CONTENT_VARIABLE,
    TELEMETRY_VARIABLE,
    is_content_wanted,
    is_telemetry_wanted,
    load_telemetry,
)

PROGRAM = """
import sys

import anyio

from holdfast.engine.engine import Engine
from holdfast.integrations.common.options import AgentHistories
from holdfast.proxy.server import open_proxy
from holdfast.proxy.settings import Settings
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.upstream import ProviderUpstream


async def main():
    upstream = ProviderUpstream(Provider(ProviderSettings()))
    async with Engine.open(
        MemoryStore(), upstream=upstream, api="anthropic", model="claude-opus-5-5", fields={"max_tokens": 9}
    ) as engine:
        await (await engine.session("kelp")).ask("Hello")
    async with open_proxy(Settings(), MemoryStore()):
        pass
    AgentHistories(MemoryStore()).open("kelp")


anyio.run(main)
print([name for name in sys.modules if name.startswith(("opentelemetry", "holdfast.telemetry."))])
"""


def run_program(program, **variables):
    """Run ``program`` in a process of its own, and return what it printed."""
    environment = {"PATH": "/usr/bin", "HOME": "/nonexistent", **variables}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60).stdout


def test_nothing_is_imported_while_it_is_off():
    """An engine that asks, a proxy and an adapter import nothing of OpenTelemetry, and of ours the switch alone."""
    assert run_program(PROGRAM).strip() == "['holdfast.telemetry.switch']"


def test_variable_switches_on_what_nobody_switched_itself():
    """``HOLDFAST_TELEMETRY`` is for engines, proxies and adapters alike."""
    modules = run_program(PROGRAM, **{TELEMETRY_VARIABLE: "1"})
    assert "holdfast.telemetry.telemetry" in modules
    # Where spans go is the program's decision: the API without the SDK records nothing.
    assert "opentelemetry.sdk" not in modules


@pytest.mark.parametrize(
    ("value", "wanted"), [("1", True), ("yes", True), ("", False), ("0", False), ("No", False), (None, False)]
)
def test_variable_means_what_other_variables_mean(value, wanted):
    """A variable that is empty, or says no, switches nothing on."""
    assert is_telemetry_wanted({} if value is None else {TELEMETRY_VARIABLE: value}) is wanted


def test_setting_of_the_proxy_is_overridden_by_variable_and_option():
    """An option wins over the variable, and that over ``holdfast.toml``."""
    assert not load_proxy_settings({}).telemetry
    assert load_proxy_settings({}, {"telemetry": True}).telemetry
    assert not load_proxy_settings({TELEMETRY_VARIABLE: "0"}, {"telemetry": True}).telemetry
    assert load_proxy_settings({TELEMETRY_VARIABLE: "0"}, {}, {"telemetry": True}).telemetry


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({CONTENT_VARIABLE: "1"}, True),
        ({CONTENT_VARIABLE: "no"}, False),
        ({STANDARD_CONTENT_VARIABLE: "SPAN_ONLY"}, True),
        ({STANDARD_CONTENT_VARIABLE: "span_and_event"}, True),
        ({STANDARD_CONTENT_VARIABLE: "true"}, True),
        ({STANDARD_CONTENT_VARIABLE: "EVENT_ONLY"}, False),
        ({STANDARD_CONTENT_VARIABLE: "NO_CONTENT"}, False),
        ({STANDARD_CONTENT_VARIABLE: "yes please"}, False),
        ({CONTENT_VARIABLE: "0", STANDARD_CONTENT_VARIABLE: "SPAN_ONLY"}, False),
        ({CONTENT_VARIABLE: "1", STANDARD_CONTENT_VARIABLE: "NO_CONTENT"}, True),
    ],
)
def test_content_is_recorded_only_where_a_variable_asks_for_it(variables, wanted):
    """Our variable wins over the standard one, of which every word that does not ask for spans leaves content out."""
    assert is_content_wanted(variables) is wanted
    assert load_proxy_settings(variables).telemetry_content is wanted


def test_option_for_content_needs_telemetry():
    """The option says what is missing; a variable or a file may wait for the times when telemetry is on."""
    content = {"telemetry_content": True}
    with pytest.raises(ConfigError, match="give --telemetry too"):
        load_proxy_settings({}, {}, content)
    assert load_proxy_settings({}, {"telemetry": True}, content).telemetry_content
    assert not load_proxy_settings({CONTENT_VARIABLE: "1"}, content).telemetry


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch):
    """Without OpenTelemetry the error says what to install; switched off it is no error."""
    monkeypatch.delitem(sys.modules, "holdfast.telemetry.telemetry", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert load_telemetry(wanted=False) is None
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[otel\]'"):
        load_telemetry(wanted=True)
