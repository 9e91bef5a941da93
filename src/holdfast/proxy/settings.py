"""The settings of the proxy: options given, else environment, else ``holdfast.toml``, else where the SDKs point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config.addresses import is_loopback_host, is_url_of_server
from holdfast.config.providers import PROVIDERS
from holdfast.config.proxy import ProxySettings as Settings
from holdfast.config.proxy import convert_proxy_setting
from holdfast.errors import ConfigError
from holdfast.planning.budget import MIN_REPORTED_BUDGET
from holdfast.planning.pipeline import Policy
from holdfast.telemetry.switch import (
    CONTENT_VARIABLE,
    FALSE_VALUES,
    STANDARD_CONTENT_VARIABLE,
    TELEMETRY_VARIABLE,
    is_content_wanted,
    is_telemetry_wanted,
)

__all__ = ["BYPASS_VARIABLE", "TOKEN_VARIABLE", "Settings", "adapt_policy_to_proxy", "load_proxy_settings"]

BYPASS_VARIABLE = "HOLDFAST_BYPASS"
"""Environment variable that makes the proxy a plain relay."""
TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105
"""Environment variable with the access token, so that it shows in no list of processes."""


def load_proxy_settings(
    environment: Mapping[str, str],
    configured: Mapping[str, Any] = {},
    overrides: Mapping[str, Any] = {},
) -> Settings:
    """Combine all sources into the settings in force; raise ``ConfigError`` for an impossible one.

    ``configured`` is what the files say (``Configuration.proxy``); ``overrides`` are options given here and now, where
    None means not given. A variable of an SDK that points at this proxy was set for its clients, and is ignored.
    """
    options: dict[str, Any] = {}
    for name, value in overrides.items():
        if value is not None:
            options[name] = convert_proxy_setting(name, value, name)
    values = dict(configured) | _read_own_variables(environment) | options
    # A variable or a file may say it for the times when telemetry is on; who gives the option wants it now.
    if options.get("telemetry_content") and not values.get("telemetry"):
        raise ConfigError("--telemetry-content adds to telemetry, which is off; give --telemetry too")
    # The address we listen at must be known first, to tell which variables point at ourselves.
    listener = Settings(**values)
    upstreams = _read_sdk_variables(environment, listener.host, listener.port)
    return _check_settings(Settings(**(upstreams | values)))


def adapt_policy_to_proxy(policy: Policy) -> Policy:
    """Return ``policy`` with settings that are right for a proxy.

    Clients retry and set cache breakpoints themselves; twice would be too many. And a window that is too small is
    tried all the same, since it may be all that a local server has.
    """
    min_budget = min(policy.settings.window.min_budget, MIN_REPORTED_BUDGET)
    return policy.with_settings(
        retry={"max_retries": 0},
        cache={"breakpoints": "none"},
        window={"min_budget": min_budget},
    )


def _read_own_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read Holdfast's own variables."""
    values: dict[str, Any] = {}
    if BYPASS_VARIABLE in environment:
        values["bypass"] = environment[BYPASS_VARIABLE].strip().lower() not in FALSE_VALUES
    if TELEMETRY_VARIABLE in environment:
        values["telemetry"] = is_telemetry_wanted(environment)
    if CONTENT_VARIABLE in environment or STANDARD_CONTENT_VARIABLE in environment:
        values["telemetry_content"] = is_content_wanted(environment)
    token = environment.get(TOKEN_VARIABLE)
    if token:
        values["token"] = convert_proxy_setting("token", token, TOKEN_VARIABLE)
    return values


def _read_sdk_variables(environment: Mapping[str, str], host: str, port: int) -> dict[str, Any]:
    """Read the addresses of providers from the variables of their SDKs."""
    values: dict[str, Any] = {}
    for upstream, provider in PROVIDERS.items():
        for variable in provider.variables:
            address = environment.get(variable.name)
            if not address:
                continue
            # Only the first variable that is set counts, also if it is ignored for pointing here.
            if not is_url_of_server(address, host, port):
                values[upstream] = convert_proxy_setting(upstream, address, variable.name)
            break
    return values


def _check_settings(candidate: Settings) -> Settings:
    """Return ``candidate``; raise ``ConfigError`` if it is its own upstream, or open to the network without a token."""
    for name in PROVIDERS:
        if is_url_of_server(getattr(candidate, name), candidate.host, candidate.port):
            own_address = f"{candidate.host} port {candidate.port}"
            message = f"{name} = {getattr(candidate, name)} is the proxy itself, at {own_address}"
            raise ConfigError(f"{message}; set it to the provider's own address")
    if not is_loopback_host(candidate.host) and not candidate.token:
        message = f"at {candidate.host} other machines could use the proxy without a token"
        raise ConfigError(
            f"{message}; set {TOKEN_VARIABLE}, or token in [proxy] of your own holdfast.toml, or listen at 127.0.0.1"
        )
    return candidate
