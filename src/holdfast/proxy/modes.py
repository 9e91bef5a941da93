"""What the proxy does with requests: reduce them, look on, or nothing at all; said in one place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

from holdfast.proxy.settings import Settings
from holdfast.store.open_store import expand_home

Mode: TypeAlias = Literal["manage", "observe", "bypass"]
BYPASS_FILENAME = "bypass"
"""The file beside a store that makes a proxy on it a plain relay, as long as it is there."""


def get_proxy_mode(settings: Settings, switch: Path | None = None) -> Mode:
    """Return what is done by ``settings``, where the file ``switch`` makes it nothing if it is there."""
    is_off = switch is not None and os.path.exists(switch)  # noqa: PTH110 -- no error where nobody can look
    if settings.bypass or is_off:
        return "bypass"
    return "observe" if settings.observe else "manage"


def get_bypass_file(place: str) -> Path | None:
    """Return the file that switches the store at ``place`` off; nothing for one that is no file."""
    return None if place == ":memory:" else expand_home(place.removeprefix("sqlite:///")).parent / BYPASS_FILENAME
