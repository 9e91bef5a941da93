"""Turn values into pages: the templates, what they may call, and the headers that every page has."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from holdfast.inspector.charts import GROUPS, MARKS, RULES
from holdfast.reports.describe import format_time
from holdfast.reports.sessions.session_list import format_age

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing but our own files is loaded, and no script or style that stands in a page is run."""
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}
ASSET_TYPES = {
    "export.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "inspector.css": "text/css",
    "inspector.js": "text/javascript",
}
"""The files that pages load, with their types."""
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_HALF_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CONTROL_PICTURES = 0x2400


def show_invisible(text: str) -> str:
    """Return ``text`` with a visible sign for each control character and each mark that turns the direction of text.

    A recording may hold anything. Line ends and tabs stay; half a surrogate, which cannot be sent, becomes U+FFFD.
    """
    return _HALF_SURROGATE.sub("\ufffd", _INVISIBLE.sub(_picture_character, text))


def _picture_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "\u2421" if code == 0x7F else f"\u27e8U+{code:04X}\u27e9"


def format_dollars(dollars: float | None) -> str:
    """Return an amount with as many digits as it needs to be told from nothing; ``-`` if it is not known."""
    if dollars is None:
        return "-"
    if dollars >= 1 or dollars == 0:
        return f"${dollars:,.2f}"
    return f"${dollars:.4f}" if dollars < 0.1 else f"${dollars:.3f}"


def format_duration(seconds: float) -> str:
    """Return a rough duration: ``a few seconds``, ``about 40 seconds``, ``about 3 minutes``, ``about 2.5 hours``."""
    if seconds < 8:
        return "a few seconds"
    if seconds < 20:
        return f"about {seconds:.0f} seconds"
    if seconds < 90:
        return f"about {round(seconds, -1):.0f} seconds"
    if seconds < 5_400:
        return f"about {seconds / 60:.0f} minutes"
    return f"about {seconds / 3_600:.1f} hours"


def format_short_tokens(tokens: int | None) -> str:
    """Return a size in at most four characters: ``812``, ``9.4k``, ``128k``, ``1.2M``; ``-`` if it is not known."""
    if tokens is None:
        return "-"
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size:
            number = tokens / size
            return f"{number:.1f}{unit}" if number < 10 else f"{number:.0f}{unit}"
    return str(tokens)


def format_seconds(seconds: float | None) -> str:
    """Return a time in its two largest units: ``0.4 s``, ``48 s``, ``3 min 20 s``, ``2 h 5 min``, ``4 d 1 h``."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, smaller_size, smaller_name in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {name} {rest} {smaller_name}" if rest else f"{whole // size} {name}"
    return f"{whole} s"


def capitalize_first(text: str) -> str:
    """Return ``text`` as the beginning of a sentence; only its first letter changes."""
    return text[:1].upper() + text[1:]


@cache
def _get_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("holdfast.inspector"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        age=format_age,
        capitalize_first=capitalize_first,
        dollars=format_dollars,
        duration=format_duration,
        seconds=format_seconds,
        short_tokens=format_short_tokens,
        time=format_time,
        visible=show_invisible,
    )
    environment.globals.update(groups=GROUPS, mark_kinds=MARKS, rule_meanings=RULES)
    return environment


class PageWriter:
    """Renders pages below the path at which the inspector is mounted."""

    def __init__(self, root_path: str = "", store_name: str = "") -> None:
        self._root_path = root_path
        self._store_name = store_name

    def make_url(self, page: str, /, **parameters: object) -> str:
        """Return the address of ``page`` (``""`` is the list of sessions); parameters that are None are left out."""
        given = {name: value for name, value in parameters.items() if value is not None}
        query = f"?{urlencode(given, errors='replace')}" if given else ""
        return f"{self._root_path}/{page}{query}"

    def render(self, template: str, **values: Any) -> str:
        """Return a page as HTML."""
        page = _get_environment().get_template(template)
        return page.render(url=self.make_url, store_name=self._store_name, **values)

    def respond(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page as a response."""
        body = self.render(template, **values).encode("utf-8", "replace")
        return HTMLResponse(body, status, headers=SECURITY_HEADERS)


@cache
def read_asset(name: str) -> bytes:
    """Return the content of a file that pages load. Raises ``KeyError`` if there is no such file."""
    if name not in ASSET_TYPES:
        raise KeyError(name)
    return files("holdfast.inspector").joinpath("assets", name).read_bytes()
