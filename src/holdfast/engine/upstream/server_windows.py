"""Ask local servers for the window of a model, beside the requests and never in their way.

Only servers on this machine or in a private network are asked, once for each model, without any key, and again after
an overflow that contradicts the answer. What comes back counts for the next request.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec import Struct

from holdfast.engine.upstream.upstream import Upstream, get_server_name
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.server_windows import WINDOW_QUESTIONS, ServerWindow, WindowQuestion, read_window

ASK_TIMEOUT = 2.0
"""Seconds that a local server may take for one answer; it answers from memory. Chosen by judgement."""
MAX_ASKS = 2
"""Times that a model is asked about: LM Studio and Ollama load it at the first request and know its window only then.
"""
MAX_MODELS = 256
"""Pairs of server and model that are remembered."""
_LOCAL_NAMES = frozenset({"localhost", "host.docker.internal"})
_Key: TypeAlias = tuple[str, str]
OnWindow: TypeAlias = Callable[["LocalWindow"], None]


class LocalWindow(Struct, frozen=True):
    """The window of a model, as its server stated it."""

    origin: str
    """Address of the server, without a path."""
    server: str
    """The kind of server, as far as its answer tells."""
    window: ServerWindow


@runtime_checkable
class AskingUpstream(Protocol):
    """An upstream that can also be asked plain questions."""

    async def ask_server(self, method: str, url: str, body: bytes, seconds: float) -> bytes:
        """Return the body of a successful answer without sending any key; empty for every other answer."""


class _Question(Struct):
    """How far the question about one model got."""

    asks: int = 0
    task: asyncio.Task[None] | None = None
    answer: LocalWindow | None = None
    is_doubted: bool = False
    """Whether a refusal contradicted the answer since it came."""


class ServerWindows:
    """The windows that local servers stated, for one event loop."""

    def __init__(self) -> None:
        self._questions: dict[_Key, _Question] = {}

    def get(self, upstream: Upstream, model: str) -> LocalWindow | None:
        """Return the window that the server of ``upstream`` stated for ``model``, if it has."""
        question = self._questions.get((_get_origin(upstream), model))
        return None if question is None else question.answer

    def ask(self, upstream: Upstream, model: str, on_window: OnWindow) -> None:
        """Begin to ask the server of ``upstream``, unless it is not local, was asked, or has answered.

        ``on_window`` gets the answer, on this loop.
        """
        origin = _get_origin(upstream)
        if not isinstance(upstream, AskingUpstream) or not is_local_url(origin) or not model:
            return
        if len(self._questions) >= MAX_MODELS and (origin, model) not in self._questions:
            return
        question = self._questions.setdefault((origin, model), _Question())
        is_known = question.answer is not None and not question.answer.window.is_upper_bound
        is_settled = is_known and not question.is_doubted
        if is_settled or question.task is not None or question.asks >= MAX_ASKS:
            return
        question.asks += 1
        question.is_doubted = False
        question.task = asyncio.get_running_loop().create_task(
            self._ask_all(upstream, origin, model, question, on_window)
        )

    def reconsider(self, upstream: Upstream, model: str, limit: int | None, requested: int | None) -> None:
        """Have the server asked again if a refusal contradicts its answer about ``model``.

        ``limit`` and ``requested`` are the tokens that the refusal named. The old answer holds until a new one comes:
        what the refusal taught is learned for that window.
        """
        question = self._questions.get((_get_origin(upstream), model))
        if question is None or question.answer is None:
            return
        stated = question.answer.window.tokens
        is_other_limit = limit is not None and limit != stated
        is_within_window = requested is not None and requested <= stated
        if is_other_limit or is_within_window:
            question.is_doubted, question.asks = True, 0

    async def close(self) -> None:
        """Stop asking."""
        for question in self._questions.values():
            if question.task is not None:
                question.task.cancel()

    async def _ask_all(
        self, upstream: AskingUpstream, origin: str, model: str, question: _Question, on_window: OnWindow
    ) -> None:
        try:
            for window_question in WINDOW_QUESTIONS:
                window = await _ask_one(upstream, origin, model, window_question)
                if window is not None:
                    is_new = question.answer is None or question.answer.window != window
                    question.answer = LocalWindow(origin, window_question.server, window)
                    if is_new:
                        on_window(question.answer)
                    return
        finally:
            question.task = None


async def _ask_one(upstream: AskingUpstream, origin: str, model: str, question: WindowQuestion) -> ServerWindow | None:
    body = encode_json({"model": model}) if question.names_model else b""
    try:
        answer = await upstream.ask_server(question.method, origin + question.path, body, ASK_TIMEOUT)
        value: Any = msgspec.json.decode(answer) if answer else None
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError, RecursionError):
        return None  # whatever goes wrong, the requests go on without the answer
    return read_window(question, value, model)


def is_local_url(url: str) -> bool:
    """Return whether ``url`` leads to this machine or to a private address."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    if host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private


def _get_origin(upstream: Upstream) -> str:
    """Return the address of the server of ``upstream`` without a path; empty if it does not say."""
    parts = urlsplit(get_server_name(upstream))
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
