"""Where the store of this user is, if nobody says otherwise: for the commands and for the adapters of frameworks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from holdfast.store.open_store import expand_home, is_database_url

STORE_VARIABLE = "HOLDFAST_STORE"
STORE_FILE_NAME = "holdfast.db"


class StoreLocation(NamedTuple):
    """The store's address, and the option, variable or default it comes from."""

    url: str
    origin: str

    @property
    def name(self) -> str:
        """The address as it may be shown: without a password."""
        return hide_password(self.url)


def locate_store(option: str | None = None) -> StoreLocation:
    """Return the store's location: the option, else ``HOLDFAST_STORE``, else the platform's data folder."""
    if option is not None:
        return StoreLocation(option, "--store")
    url = os.environ.get(STORE_VARIABLE)
    if url:
        return StoreLocation(url, STORE_VARIABLE)
    from platformdirs import user_data_path

    return StoreLocation(str(user_data_path("holdfast", appauthor=False) / STORE_FILE_NAME), "default")


def find_store_file(url: str) -> Path | None:
    """Return the file of the store at ``url``, or None for a store in memory or on a database server."""
    if url == ":memory:" or is_database_url(url):
        return None
    return expand_home(url.removeprefix("sqlite:///"))


def hide_password(url: str) -> str:
    """Return the address of a store without the password that one on a database server may have."""
    if not is_database_url(url):
        return url
    # Up to the last @: a password that should have been percent-encoded may have one, and more.
    without_login = re.sub(r"(?s)^(\w+://[^:/@?]*):.*@", r"\1@", url)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1…", without_login)


def has_password(url: str) -> bool:
    """Return whether the address of a store has a password."""
    return hide_password(url) != url
