"""The inspector at ``/inspect`` of a proxy: the same pages, of the store into which the proxy records.

The proxy's rules for who may ask are for programs. A browser is let in here: on loopback if it comes from this machine,
elsewhere with the proxy's token, which the first address brings and a cookie keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from threading import Lock
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.config.addresses import is_loopback_host
from holdfast.proxy.http.access import is_token_valid
from holdfast.proxy.settings import Settings

MOUNT_PATH = "/inspect"
COOKIE_NAME = "holdfast_token"


class InspectorMount:
    """Answers what is below ``MOUNT_PATH`` with the inspector, and hands everything else to the proxy."""

    def __init__(self, proxy: ASGIApp, settings: Settings, make_inspector: Callable[[bool], ASGIApp]) -> None:
        """``make_inspector`` is called at the first page, so that a proxy which shows none imports nothing. It is told
        whether the pages are for this machine alone.
        """
        self._proxy = proxy
        self._settings = settings
        self._make_inspector = make_inspector
        self._inspector: ASGIApp | None = None
        self._lock = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == MOUNT_PATH or path.startswith(f"{MOUNT_PATH}/")):
            await self._proxy(scope, receive, send)
            return
        refusal = self._find_refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if path == MOUNT_PATH:
            await RedirectResponse(f"{MOUNT_PATH}/")(scope, receive, send)
            return
        await self._get_inspector()({**scope, "root_path": MOUNT_PATH}, receive, send)

    def _find_refusal(self, scope: Scope) -> Response | None:
        """Return what to answer in place of the page if a token is missing; an address with one sets the cookie."""
        token = self._settings.token
        if not token:
            return None
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if given and is_token_valid(given, token):
            response = RedirectResponse(f"{MOUNT_PATH}/", 303)
            response.set_cookie(COOKIE_NAME, token, path=MOUNT_PATH, httponly=True, samesite="strict")
            return response
        if is_token_valid(_read_cookie(scope), token):
            return None
        return PlainTextResponse(f"the proxy has a token; open {MOUNT_PATH}/?token=TOKEN once\n", 401)

    def _get_inspector(self) -> ASGIApp:
        with self._lock:
            if self._inspector is None:
                self._inspector = self._make_inspector(is_loopback_host(self._settings.host))
            return self._inspector


def _read_cookie(scope: Scope) -> str:
    """Return the token that the browser kept, or ``""``."""
    headers = dict(scope.get("headers", ()))
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return ""
    return cookies[COOKIE_NAME].value if COOKIE_NAME in cookies else ""
