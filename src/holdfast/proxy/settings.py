"""What the proxy does: what was given, else the environment, else ``holdfast.toml``, else what the SDKs are told."""

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

__all__ = ["BYPASS_VARIABLE", "TOKEN_VARIABLE", "Settings", "adapt_policy_to_proxy", "load_proxy_settings"]

BYPASS_VARIABLE = "HOLDFAST_BYPASS"
"""The variable that makes the proxy a plain relay."""
TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105
"""The variable that holds the token, so that no list of processes shows it."""
_FALSE_VALUES = {"", "0", "false", "no", "off"}


def load_proxy_settings(
    environment: Mapping[str, str], configured: Mapping[str, Any] = {}, overrides: Mapping[str, Any] = {}
) -> Settings:
    """Return what is in force; ``ConfigError`` names what cannot be.

    ``configured`` is what the files say (``Configuration.proxy``), ``overrides`` what was asked for here and now;
    nothing in it asks for nothing. A variable of the SDKs that leads to the proxy itself was meant for its clients, and
    says nothing.
    """
    options = {name: convert_proxy_setting(name, value, name) for name, value in overrides.items() if value is not None}
    values = dict(configured) | _read_own_variables(environment) | options
    where = Settings(**values)
    return _check_settings(Settings(**(_read_sdk_variables(environment, where.host, where.port) | values)))


def adapt_policy_to_proxy(policy: Policy) -> Policy:
    """Return ``policy`` as it decides here.

    Retries and breakpoints are the client's to do, and a small window is tried: it may be all that a server has.
    """
    min_budget = min(policy.settings.window.min_budget, MIN_REPORTED_BUDGET)
    return policy.with_settings(
        retry={"max_retries": 0}, cache={"breakpoints": "none"}, window={"min_budget": min_budget}
    )


def _read_own_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what our own variables say."""
    values: dict[str, Any] = {}
    if BYPASS_VARIABLE in environment:
        values["bypass"] = environment[BYPASS_VARIABLE].strip().lower() not in _FALSE_VALUES
    if token := environment.get(TOKEN_VARIABLE):
        values["token"] = convert_proxy_setting("token", token, TOKEN_VARIABLE)
    return values


def _read_sdk_variables(environment: Mapping[str, str], host: str, port: int) -> dict[str, Any]:
    """Return where the variables of the SDKs say that the providers are."""
    values = {}
    for upstream, provider in PROVIDERS.items():
        name = next((variable.name for variable in provider.variables if environment.get(variable.name)), "")
        if name and not is_url_of_server(environment[name], host, port):
            values[upstream] = convert_proxy_setting(upstream, environment[name], name)
    return values


def _check_settings(candidate: Settings) -> Settings:
    for name in PROVIDERS:
        if is_url_of_server(getattr(candidate, name), candidate.host, candidate.port):
            message = (
                f"{name} = {getattr(candidate, name)} is the proxy itself, at {candidate.host} port {candidate.port}"
            )
            raise ConfigError(f"{message}; name the provider's own address")
    if not is_loopback_host(candidate.host) and not candidate.token:
        message = f"at {candidate.host} other machines could use the proxy without a token"
        raise ConfigError(
            f"{message}; set {TOKEN_VARIABLE}, or token in [proxy] of your own holdfast.toml, or listen at 127.0.0.1"
        )
    return candidate
