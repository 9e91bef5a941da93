"""The strict provider: a request in, the reply of a provider that enforces every rule out. No sockets, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import ConfigError, check_types
from holdfast.providers.registry import form_of
from holdfast.testing.provider.answers.answering import Scene, reply
from holdfast.testing.provider.answers.saying import place
from holdfast.testing.provider.answers.script import Script, Speaker
from holdfast.testing.provider.blocks import blocks
from holdfast.testing.provider.cache import Hit, Ledger, rules
from holdfast.testing.provider.calls import Answered, Asked, Compacted, Counted, Endpoint, Refusal, Reply, Said, Used
from holdfast.testing.provider.judge import overflowing
from holdfast.testing.provider.judge.counting import Scale, counter
from holdfast.testing.provider.judge.judge import obeys, returns, visible
from holdfast.testing.provider.judge.limits import Measure, limit, measure
from holdfast.testing.provider.reading import Request, read
from holdfast.testing.provider.seals.shelf import Shelf
from holdfast.testing.provider.seals.signing import Chain, Checked
from holdfast.testing.provider.settings import Settings


class Judged(Struct, frozen=True):
    """One line of the provider's own ledger."""

    asked: Asked
    reply: Reply
    tokens: int = 0
    """Input tokens as counted; 0 where the request was refused before."""
    cached: int = 0
    """Input tokens read from the cache."""


class Provider:
    """A provider of all four APIs. Equal requests in equal order get equal replies; safe for several threads.

    ``clock`` gives seconds and is read once a request, for the cache alone; without one each request is a second later.
    Raises ``ConfigError`` for a tokenizer that is not installed and an overflow nobody says.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        script: Sequence[Said] | Speaker = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Open a provider that will say ``script``, then answer by a simple rule (``Script``), or as a speaker does."""
        check_types(ConfigError, settings=(settings, Settings | None))
        self.settings = settings or Settings()
        if self.settings.overflow not in overflowing.NAMES:
            names = ", ".join(overflowing.NAMES)
            raise ConfigError(f"no provider says an overflow as {self.settings.overflow!r}; choose one of {names}")
        self.requests: list[Judged] = []
        self.shelf = Shelf()
        ticks = count()
        self._clock = clock or (lambda: float(next(ticks)))
        self._scale = Scale(counter(self.settings.tokenizer), self.settings.factor)
        if isinstance(script, Sequence):
            check_types(ConfigError, **{f"script[{at}]": (one, Said) for at, one in enumerate(script)})
        self._script: Speaker = Script(script) if isinstance(script, Sequence) else script
        self._ledger, self._lock = Ledger(), Lock()
        self._number = 0

    @property
    def seen(self) -> list[Asked]:
        """All requests, in the order in which they came."""
        return [one.asked for one in self.requests]

    def answer(self, asked: Asked) -> Reply:
        """Return the reply to any request at all; whatever its bytes are, nothing is raised."""
        with self._lock:
            judged = self._judged(asked, self._clock())
            self.requests.append(judged)
            return judged.reply

    def ask(
        self,
        api: str,
        body: Mapping[str, Any] | bytes,
        *,
        endpoint: Endpoint = "generate",
        model: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return the reply to a body that is given as a value, or as its bytes."""
        form_of(api)
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self.answer(Asked(api, endpoint, data, model, headers=dict(headers or {})))

    # -- from refusal to answer ----------------------------------------------------------------------------------------

    def _judged(self, asked: Asked, now: float) -> Judged:
        found = read(asked, self.settings.max_bytes, self.settings.models)
        if isinstance(found, Refusal):
            return Judged(asked, found)
        request = self.shelf.whole(found)
        if isinstance(request, Refusal):
            return Judged(asked, request)
        refusal = obeys(request)
        if refusal is not None:
            return Judged(asked, refusal)
        pieces = blocks(request.api, request.body)
        checked = returns(request, pieces, self.settings, self.shelf)
        if isinstance(checked, Refusal):
            return Judged(asked, checked)
        measured = measure(visible(request, checked.pieces), self._scale, request, self.settings)
        if asked.endpoint == "count":
            return Judged(asked, Counted(measured.tokens), measured.tokens)
        refusal = limit(request, measured, self.settings)
        if refusal is not None:
            return Judged(asked, refusal, measured.tokens)
        hit = self._hit(request, measured, now)
        return Judged(asked, self._reply(request, measured, hit, checked), measured.tokens, hit.read)

    def _hit(self, request: Request, measured: Measure, now: float) -> Hit:
        """Return what the cache gives; a request that lost its front has none."""
        if not self.settings.cache or measured.cut:
            return Hit()
        ruled = rules(request.api, request.model, self.settings.cache_minimum)
        return self._ledger.serve(request, measured.blocks, measured.sums, ruled, now)

    def _reply(self, request: Request, measured: Measure, hit: Hit, checked: Checked) -> Answered | Compacted:
        self._number += 1
        setting = place(request, Chain(checked.pieces).state, self._number)
        used, count = _used(measured.tokens, hit), self._scale.text
        scene = Scene(request, measured, setting, used, checked, self.settings.window, count)
        replied = reply(scene, lambda: self._script.next(request, checked.pieces))
        if isinstance(replied, Answered) and request.api == "openai-responses":
            made = [msgspec.json.decode(part.raw) for part in replied.parts if part.raw is not None]
            self.shelf.keep(replied.id, request, made)
        return replied


def _used(tokens: int, hit: Hit) -> Used:
    return Used(tokens - hit.read - hit.write, 0, hit.read, hit.write, cache_write_1h=hit.write_1h)
