"""The modes of the proxy: manage requests, only observe them, or do nothing at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

from holdfast.proxy.settings import Settings
from holdfast.store.location import find_store_file

Mode: TypeAlias = Literal["manage", "observe", "bypass"]
BYPASS_FILENAME = "bypass"
"""Name of the file beside a store that makes its proxy a plain relay for as long as the file exists.

A file works without the proxy's cooperation, even if Holdfast itself is what is broken.
"""


def get_proxy_mode(settings: Settings, bypass_file: Path | None = None) -> Mode:
    """Return the mode by ``settings``; it is ``bypass`` while ``bypass_file`` exists."""
    is_off = bypass_file is not None and os.path.exists(bypass_file)  # noqa: PTH110 -- no error for unreadable folders
    if settings.bypass or is_off:
        return "bypass"
    if settings.observe:
        return "observe"
    return "manage"


def get_bypass_file(store: str) -> Path | None:
    """Return the file that turns the proxy on ``store`` off, or None if the store is not a file."""
    path = find_store_file(store)
    return None if path is None else path.parent / BYPASS_FILENAME
