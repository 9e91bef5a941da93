"""Find out whether an address is that of a Holdfast proxy that runs already, as ``holdfast enable`` starts one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec import Struct

from holdfast.config.addresses import is_base_url, is_local_url
from holdfast.proxy.http.headers import STATE_HEADER, TOKEN_HEADER
from holdfast.proxy.settings import TOKEN_VARIABLE
from holdfast.state.codec.reading import get_decoder

BASE_URL_VARIABLE = "ANTHROPIC_BASE_URL"
PROBE_SECONDS = 2.0
"""Seconds to wait for a server on this machine. Chosen by judgement: our proxy answers in milliseconds."""


class RunningProxy(Struct, frozen=True):
    """A Holdfast proxy that somebody else has started; ``token`` is what it asks of its clients, or empty."""

    token: str = ""


class _Status(Struct, frozen=True):
    """What a Holdfast proxy says of itself at ``/livez``."""

    status: str
    mode: str
    since: str


def find_running_proxy(url: str) -> RunningProxy | None:
    """Return the Holdfast proxy that answers at ``url``, or None; only this machine is asked."""
    if not (is_base_url(url) and is_local_url(url)):
        return None
    parts = urlsplit(url)
    status_url = f"{parts.scheme}://{parts.netloc}/livez"
    token = os.environ.get(TOKEN_VARIABLE, "")
    try:
        response = httpx2.get(status_url, timeout=PROBE_SECONDS, trust_env=False)
        # The token goes only to a server that has shown to be a Holdfast proxy.
        is_closed = response.status_code == httpx2.codes.UNAUTHORIZED and STATE_HEADER.decode() in response.headers
        if is_closed:
            return RunningProxy(token)
        get_decoder(_Status).decode(response.content)
    except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.MsgspecError, UnicodeError):
        return None
    return RunningProxy()


def is_url_at(url: str, proxy_url: str) -> bool:
    """Return whether requests to ``url`` go to the proxy at ``proxy_url``."""
    return url == proxy_url or url.startswith(f"{proxy_url}/")


def make_token_header(token: str) -> str:
    """Return the line of ``ANTHROPIC_CUSTOM_HEADERS`` with which Claude Code sends the token of a proxy."""
    return f"{TOKEN_HEADER.decode()}: {token}"


def read_user_settings_url(environment: Mapping[str, str]) -> str:
    """Return the address that the user's own ``settings.json`` of Claude Code sets, or an empty string.

    It overrides variables. Settings of the working folder are not read: they may have come from anywhere.
    """
    folder = environment.get("CLAUDE_CONFIG_DIR") or Path(environment.get("HOME") or Path.home(), ".claude")
    return get_settings_url(read_settings_file(Path(folder, "settings.json")))


def read_settings_file(path: Path) -> Any:
    """Return the document in a file of settings; None if there is none, or it is no JSON."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def get_settings_url(document: Any) -> str:
    """Return the address that a document of settings sets, or an empty string."""
    environment = document.get("env") if isinstance(document, dict) else None
    url = environment.get(BASE_URL_VARIABLE) if isinstance(environment, dict) else None
    return url if isinstance(url, str) else ""
