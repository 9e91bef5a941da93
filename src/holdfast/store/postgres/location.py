"""The address of a store on PostgreSQL: what the database driver reads, and the settings that are ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import ConfigError

OUR_PREFIX = "holdfast_"
"""Beginning of the names of our own settings in an address."""
OUR_SETTINGS = ("tenant", "schema", "notify")
"""Those names, without it."""
DEFAULT_SCHEMA = "holdfast"
"""Schema of the tables: one of our own, since names such as ``sessions`` are likely taken in ``public``."""
DEFAULT_TENANT = "default"
"""Tenant of a store whose address names none."""
CONNECTION_DEFAULTS = {
    "application_name": "holdfast",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
"""Settings of a connection unless the address has others.

Chosen by judgement: a machine that is gone is noticed within half a minute, and not after the two hours that an
operating system waits by default.
"""
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
MAX_TENANT_CHARS = 200
"""Maximum length of a tenant's name. Chosen by judgement: it is stored in each row."""


class PostgresLocation(Struct, frozen=True):
    """A parsed address."""

    conninfo: str
    """What the driver connects with, possibly with a password: it is never shown."""
    name: str
    """The address as messages show it, without any password."""
    tenant: str = DEFAULT_TENANT
    schema: str = DEFAULT_SCHEMA
    is_notifying: bool = False
    """Whether each write tells other processes of it (``holdfast_notify=on``)."""


def parse_postgres_location(url: str) -> PostgresLocation:
    """Parse ``postgresql://user@host/database?holdfast_tenant=acme``; raises ``ConfigError`` for a wrong one.

    Settings whose names begin with ``holdfast_`` are ours, all others are the driver's. The errors do not repeat
    the address, since it may have a password at the wrong place.
    """
    address, _, query = url.partition("?")
    driver_settings: list[str] = []
    our_settings: dict[str, str] = {}
    for setting in filter(None, query.split("&")):
        name, _, value = setting.partition("=")
        if name.startswith(OUR_PREFIX):
            our_settings[name.removeprefix(OUR_PREFIX)] = unquote(value)
        else:
            driver_settings.append(setting)
    if driver_settings:
        address = f"{address}?{'&'.join(driver_settings)}"
    try:
        parameters = conninfo_to_dict(address)
        conninfo = make_conninfo(address, **(CONNECTION_DEFAULTS | parameters))
    except psycopg.Error:
        # The driver's message may quote a part of the address, and the password with it.
        msg = (
            "the store's address is not one of PostgreSQL; write postgresql://user@host:5432/database, with "
            "special characters of a password percent-encoded, or leave the password to PGPASSWORD or ~/.pgpass"
        )
        raise ConfigError(msg) from None
    _check_setting_names(our_settings)
    return PostgresLocation(
        conninfo=conninfo,
        name=_format_name(parameters, our_settings),
        tenant=_parse_tenant(our_settings.get("tenant", DEFAULT_TENANT)),
        schema=_parse_schema(our_settings.get("schema", DEFAULT_SCHEMA)),
        is_notifying=_parse_switch("notify", our_settings.get("notify", "off")),
    )


def _check_setting_names(our_settings: Iterable[str]) -> None:
    for name in our_settings:
        if name not in OUR_SETTINGS:
            known_names = ", ".join(OUR_PREFIX + known for known in OUR_SETTINGS)
            raise ConfigError(
                f"the store's address has {OUR_PREFIX}{name[:40]}, which is not a setting; these are: {known_names}"
            )


def _parse_tenant(tenant: str) -> str:
    if not 0 < len(tenant) <= MAX_TENANT_CHARS or not tenant.isprintable():
        msg = f"{OUR_PREFIX}tenant must be 1 to {MAX_TENANT_CHARS} printable characters; give another name"
        raise ConfigError(msg)
    return tenant


def _parse_schema(schema: str) -> str:
    if not _SCHEMA_NAME.match(schema):
        msg = f"{OUR_PREFIX}schema must be 1 to 63 of a-z, 0-9 and _, and begin with no digit; give another name"
        raise ConfigError(msg)
    return schema


def _parse_switch(name: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise ConfigError(f"{OUR_PREFIX}{name} is {value[:40]!r}; it is on or off")
    return value == "on"


def _format_name(parameters: Mapping[str, object], our_settings: Mapping[str, str]) -> str:
    """Return the address for messages: no password, and of our settings only what tells two stores apart."""
    host = parameters.get("host") or parameters.get("hostaddr") or ""
    port = parameters.get("port")
    user = parameters.get("user")
    name = "postgresql://"
    if user:
        name += f"{user}@"
    # A folder with the server's socket is written as an option: it would be taken for the path of the address.
    is_socket = str(host).startswith("/")
    if not is_socket:
        name += str(host)
    if port:
        name += f":{port}"
    name += f"/{parameters.get('dbname') or ''}"
    options = [f"host={host}"] if is_socket else []
    for option in ("tenant", "schema"):
        if option in our_settings:
            options.append(f"{OUR_PREFIX}{option}={our_settings[option]}")
    return name + ("?" + "&".join(options) if options else "")
