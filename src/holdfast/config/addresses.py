"""Addresses of servers: which are of this machine alone, and which lead to a server of ours."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from socket import gethostname
from urllib.parse import SplitResult, urlsplit

BASE_URL_PATTERN = r"^https?://[^\s/@?#\\]+(/[^\s?#\\]*)?\Z"
"""A base address: paths are added at its end, so nothing may follow its own; a password in it would be shown."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_WILDCARD_HOSTS = {"0.0.0.0", "::", ""}  # noqa: S104
"""Hosts by which a server listens everywhere; nothing is bound here."""


def is_base_url(text: str) -> bool:
    """Return whether requests can be sent to ``text``."""
    return re.search(BASE_URL_PATTERN, text) is not None and _split_url(text) is not None


@lru_cache
def is_loopback_host(host: str) -> bool:
    """Return whether ``host``, a name or an address without its port, can only be this machine."""
    name = host.lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    ipv4_address = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (ipv4_address or address).is_loopback


def is_local_url(base: str) -> bool:
    """Return whether what is sent to ``base`` stays on this machine."""
    url = _split_url(base)
    return url is not None and is_loopback_host(url.hostname or "")


def is_url_of_server(base: str, host: str, port: int) -> bool:
    """Return whether ``base`` is the server that listens at ``host`` and ``port``; 0 is no port yet."""
    url = _split_url(base)
    if url is None or (url.port or _DEFAULT_PORTS.get(url.scheme)) != port:
        return False
    name, is_anywhere = url.hostname or "", host in _WILDCARD_HOSTS
    here = is_loopback_host(name) or name in _WILDCARD_HOSTS or (is_anywhere and name == gethostname().lower())
    return name == host.lower() or (here and (is_anywhere or is_loopback_host(host)))


def get_external_address(address: str) -> str:
    """Return the address by which other machines reach a server at ``address``: with a name where it has only any."""
    url = _split_url(address)
    if url is None or url.hostname not in _WILDCARD_HOSTS:
        return address
    return f"{url.scheme}://{gethostname()}:{url.port}"


def _split_url(base: str) -> SplitResult | None:
    """Return the parts of an address, or nothing where it has a host or a port that cannot be."""
    try:
        url = urlsplit(base)
        is_whole = bool(url.hostname) and url.port != 0
    except ValueError:
        return None
    return url if is_whole else None
