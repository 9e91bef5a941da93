"""Questions about server addresses: is it on this machine, is it one of our own servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from socket import gethostname
from urllib.parse import SplitResult, urlsplit

BASE_URL_PATTERN = r"^https?://[^\s/@?#\\]+(/[^\s?#\\]*)?\Z"
"""A base address. Paths are appended to it, so it has no query; a password in it would be shown in errors and logs."""
LOCAL_HOSTS = "127.0.0.1,localhost"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_WILDCARD_HOSTS = {"0.0.0.0", "::", ""}  # noqa: S104
"""Hosts with which a server listens on all addresses; they are only compared here, never bound."""


def is_base_url(text: str) -> bool:
    """Return whether ``text`` is an address that requests can be sent to."""
    return re.search(BASE_URL_PATTERN, text) is not None and _split_url(text) is not None


@lru_cache
def is_loopback_host(host: str) -> bool:
    """Return whether ``host``, a name or an address without port, can only mean this machine."""
    # ``LOCALHOST``, ``[::1]`` and ``localhost.`` are all valid spellings.
    name = host.lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    # ``::ffff:127.0.0.1`` is loopback too, but Python's IPv6Address does not say so.
    ipv4_address = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (ipv4_address or address).is_loopback


def is_local_url(base: str) -> bool:
    """Return whether requests to ``base`` stay on this machine."""
    url = _split_url(base)
    return url is not None and is_loopback_host(url.hostname or "")


def is_url_of_server(base: str, host: str, port: int) -> bool:
    """Return whether ``base`` is the address of the server that listens at ``host`` and ``port`` (0: not yet known)."""
    url = _split_url(base)
    if url is None or (url.port or _DEFAULT_PORTS.get(url.scheme)) != port:
        return False
    name = url.hostname or ""
    if name == host.lower():
        return True
    listens_everywhere = host in _WILDCARD_HOSTS
    is_own_name = listens_everywhere and name == gethostname().lower()
    is_this_machine = is_loopback_host(name) or name in _WILDCARD_HOSTS or is_own_name
    return is_this_machine and (listens_everywhere or is_loopback_host(host))


def get_external_address(address: str) -> str:
    """Return the address by which other machines reach a server; a wildcard host is replaced by this machine's name."""
    url = _split_url(address)
    if url is None or url.hostname not in _WILDCARD_HOSTS:
        return address
    return f"{url.scheme}://{gethostname()}:{url.port}"


def _split_url(base: str) -> SplitResult | None:
    """Return the parts of an address, or None if its host or port is impossible."""
    try:
        url = urlsplit(base)
        is_whole = bool(url.hostname) and url.port != 0
    except ValueError:
        return None
    return url if is_whole else None


def make_no_proxy_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that keep requests to this machine off a configured network proxy."""
    # Programs read these variables in upper case or in lower case, so both forms are looked for and set.
    network_proxies = [environment[name] for name in environment if name.lower() in {"http_proxy", "all_proxy"}]
    if not any(network_proxies):
        return {}
    no_proxy = environment.get("NO_PROXY") or environment.get("no_proxy")
    hosts = f"{no_proxy},{LOCAL_HOSTS}" if no_proxy else LOCAL_HOSTS
    return {"NO_PROXY": hosts, "no_proxy": hosts}
