"""Where the store of this user is, if nobody says otherwise: for the commands and for the adapters of frameworks."""

from __future__ import annotations

import os
from typing import NamedTuple

STORE_VARIABLE = "HOLDFAST_STORE"
STORE_FILE_NAME = "holdfast.db"


class StoreLocation(NamedTuple):
    """The store's address, and the option, variable or default it comes from."""

    url: str
    origin: str


def locate_store(option: str | None = None) -> StoreLocation:
    """Return the store's location: the option, else ``HOLDFAST_STORE``, else the platform's data folder."""
    if option is not None:
        return StoreLocation(option, "--store")
    url = os.environ.get(STORE_VARIABLE)
    if url:
        return StoreLocation(url, STORE_VARIABLE)
    from platformdirs import user_data_path

    return StoreLocation(str(user_data_path("holdfast", appauthor=False) / STORE_FILE_NAME), "default")
