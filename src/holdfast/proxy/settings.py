"""What the proxy does: what was given, else the environment, else ``holdfast.toml``, else what the SDKs are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config.addresses import is_loopback, leads_to
from holdfast.config.providers import PROVIDERS
from holdfast.config.proxy import ProxySettings as Settings
from holdfast.config.proxy import setting
from holdfast.errors import ConfigError
from holdfast.planning.budget import LEAST_TOLD
from holdfast.planning.pipeline import Policy

__all__ = ["BYPASS", "TOKEN", "Settings", "as_decided", "settings"]

BYPASS = "HOLDFAST_BYPASS"
"""The variable that makes the proxy a plain relay."""
TOKEN = "HOLDFAST_TOKEN"  # noqa: S105
"""The variable that holds the token, so that no list of processes shows it."""
_OFF = {"", "0", "false", "no", "off"}


def settings(environment: Mapping[str, str], said: Mapping[str, Any] = {}, given: Mapping[str, Any] = {}) -> Settings:
    """Return what is in force; ``ConfigError`` names what cannot be.

    ``said`` is what the files say (``Configuration.proxy``), ``given`` what was asked for here and now; nothing in it
    asks for nothing. A variable of the SDKs that leads to the proxy itself was meant for its clients, and says nothing.
    """
    asked = {name: setting(name, value, name) for name, value in given.items() if value is not None}
    told = dict(said) | _ours(environment) | asked
    where = Settings(**told)
    return _checked(Settings(**(_theirs(environment, where.host, where.port) | told)))


def as_decided(policy: Policy) -> Policy:
    """Return ``policy`` as it decides here.

    Retries and breakpoints are the client's to do, and a small window is tried: it may be all that a server has.
    """
    least = min(policy.settings.room_min, LEAST_TOLD)
    return policy.with_settings(retries_most=0, markers="none", room_min=least)


def _ours(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what our own variables say."""
    found: dict[str, Any] = {}
    if BYPASS in environment:
        found["bypass"] = environment[BYPASS].strip().lower() not in _OFF
    if token := environment.get(TOKEN):
        found["token"] = setting("token", token, TOKEN)
    return found


def _theirs(environment: Mapping[str, str], host: str, port: int) -> dict[str, Any]:
    """Return where the variables of the SDKs say that the providers are."""
    found = {}
    for upstream, provider in PROVIDERS.items():
        name = next((one.name for one in provider.variables if environment.get(one.name)), "")
        if name and not leads_to(environment[name], host, port):
            found[upstream] = setting(upstream, environment[name], name)
    return found


def _checked(found: Settings) -> Settings:
    for name in PROVIDERS:
        if leads_to(getattr(found, name), found.host, found.port):
            told = f"{name} = {getattr(found, name)} is the proxy itself, at {found.host} port {found.port}"
            raise ConfigError(f"{told}; name the provider's own address")
    if not is_loopback(found.host) and not found.token:
        told = f"at {found.host} other machines could use the proxy without a token"
        raise ConfigError(f"{told}; set {TOKEN}, or token in [proxy] of your own holdfast.toml, or listen at 127.0.0.1")
    return found
