"""Addresses of servers: which are of this machine alone, and which lead to a server of ours."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from socket import gethostname
from urllib.parse import SplitResult, urlsplit

BASE = r"^https?://[^\s/@?#\\]+(/[^\s?#\\]*)?\Z"
"""A base address: paths are added at its end, so nothing may follow its own; a password in it would be shown."""
_PORTS = {"http": 80, "https": 443}
_ANY = {"0.0.0.0", "::", ""}  # noqa: S104
"""Hosts by which a server listens everywhere; nothing is bound here."""


def is_base(text: str) -> bool:
    """Return whether requests can be sent to ``text``."""
    return re.search(BASE, text) is not None and _split(text) is not None


@lru_cache
def is_loopback(host: str) -> bool:
    """Return whether ``host``, a name or an address without its port, can only be this machine."""
    name = host.lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def is_local(base: str) -> bool:
    """Return whether what is sent to ``base`` stays on this machine."""
    found = _split(base)
    return found is not None and is_loopback(found.hostname or "")


def leads_to(base: str, host: str, port: int) -> bool:
    """Return whether ``base`` is the server that listens at ``host`` and ``port``; 0 is no port yet."""
    found = _split(base)
    if found is None or (found.port or _PORTS.get(found.scheme)) != port:
        return False
    name, is_anywhere = found.hostname or "", host in _ANY
    here = is_loopback(name) or name in _ANY or (is_anywhere and name == gethostname().lower())
    return name == host.lower() or (here and (is_anywhere or is_loopback(host)))


def from_elsewhere(address: str) -> str:
    """Return the address by which other machines reach a server at ``address``: with a name where it has only any."""
    found = _split(address)
    if found is None or found.hostname not in _ANY:
        return address
    return f"{found.scheme}://{gethostname()}:{found.port}"


def _split(base: str) -> SplitResult | None:
    """Return the parts of an address, or nothing where it has a host or a port that cannot be."""
    try:
        found = urlsplit(base)
        is_whole = bool(found.hostname) and found.port != 0
    except ValueError:
        return None
    return found if is_whole else None
