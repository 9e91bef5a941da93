"""The proxy as an ASGI application: what comes in, what it is, and who answers it."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx2
import msgspec
from anyio import Event, current_time
from msgspec.structs import replace

from holdfast.config.addresses import leads_to
from holdfast.errors import FormatError, HoldfastError, InvalidRequest, UpstreamError, WindowTooSmall
from holdfast.policy.projection import send_slots
from holdfast.proxy.answering import BAD_GATEWAY, Asked, Unfit, answered, errs, marked, unfit
from holdfast.proxy.beside import beside
from holdfast.proxy.bodies import Bodies
from holdfast.proxy.clients import client, has_tools, kind
from holdfast.proxy.exposition import CONTENT_TYPE
from holdfast.proxy.headers import TOKEN, State, upward
from holdfast.proxy.health import Ended, Health
from holdfast.proxy.hosts import knows_token, refusal
from holdfast.proxy.identity import session_key
from holdfast.proxy.incoming import Gone, Incoming, Receive, Scope, chunks, left, received
from holdfast.proxy.keepalive import sign_of
from holdfast.proxy.live import Live
from holdfast.proxy.modes import Mode, mode_of
from holdfast.proxy.outgoing import Outgoing, Send, given
from holdfast.proxy.relay import Head, Onward, Piece
from holdfast.proxy.routes import address
from holdfast.proxy.settings import Settings
from holdfast.proxy.unpacking import BadBody, decoded
from holdfast.runtime.following import glimpse
from holdfast.runtime.means import Means
from holdfast.runtime.summarise import Writer
from holdfast.wire.lens import Lens, render
from holdfast.wire.native_errors import stream_event
from holdfast.wire.overflow import Verdict

ELSEWHERE = ("previous_response_id", "conversation", "background")
"""Fields of Responses by which the conversation is kept by the provider: there is nothing here to look at."""
UNSET = (b"null", b"false")
SURELY = 0.5
"""[H] Share of the window that what is estimated may have and surely fit."""
SCOPES = 4_096
"""[H] Scopes of which it is held that their conversations have tools."""
TOO_LARGE = 413
FAILED = 300
"""The first status that is no success."""
JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", CONTENT_TYPE.encode())


class Proxy:
    """Answers clients with what their provider answers, for requests that are made to fit."""

    _settings: Settings
    _live: Live

    def __init__(self, means: Means, web: httpx2.AsyncClient, health: Health, switch: Path | None = None) -> None:
        self.means, self.health = means, health
        self._web, self._switch = web, switch
        self._with_tools: dict[tuple[str, str], None] = {}
        self._bodies = Bodies()
        self._running = 0

    def configure(self, settings: Settings, live: Live) -> None:
        """Let later requests be answered by ``settings``; what is under way ends as it began."""
        self._settings, self._live = settings, live
        self.health.mode = self._mode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what is done for it is given up where its client leaves."""
        if scope["type"] != "http":
            return
        incoming, outgoing = Incoming.of(scope), Outgoing(send)
        try:
            pieces = self._at_once(incoming)
            if pieces is None:
                await self._served(incoming, receive, outgoing)
            else:
                await self._told(outgoing, pieces, incoming.route.api)
        except Gone:
            return
        except Exception as error:  # noqa: BLE001 -- a client is told, whatever it is
            if _has_left(error):
                return
            self._degraded(error)
            if not outgoing.status:
                await _said(outgoing, errs(incoming.route.api, "server", f"holdfast failed: {type(error).__name__}"))

    async def _told(self, outgoing: Outgoing, pieces: list[Piece], api: str) -> None:
        """Send an answer that needs nobody; a refusal is counted as one of ours."""
        if any(isinstance(piece, Head) and piece.status >= FAILED for piece in pieces):
            await _refused(outgoing, pieces)
            self.health.began(api).ended("refused", outgoing.status)
        else:
            await _said(outgoing, pieces)

    def _at_once(self, incoming: Incoming) -> list[Piece] | None:
        """Return what is answered without asking anybody; nothing where somebody is to be asked."""
        headers, api = incoming.headers, incoming.route.api
        why = refusal(headers.get("host"), headers.get("origin"), self._settings.host)
        if why:
            return errs(api, "invalid_request", why, status=403)
        if headers.get("sec-fetch-mode") == "navigate" or headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
            return errs(api, "invalid_request", "pages of a browser are not answered here", status=403)
        if not knows_token(headers.get(TOKEN.decode()), self._settings.token):
            return errs(api, "auth", f"this proxy wants its token in the header {TOKEN.decode()}", status=401)
        if incoming.method in {"GET", "HEAD"} and (told := self._about(incoming.route.place)) is not None:
            return told
        if not (incoming.route.base or incoming.route.upstream) or self._is_here(incoming.route.base):
            return _nowhere(incoming)
        if incoming.route.endpoint == "probe":
            return errs(api, "invalid_request", "WebSockets are not spoken here; send POST over HTTP", status=426)
        if self._running >= self._settings.concurrent:
            why = f"{self._running} requests are being answered already; try again, or raise concurrent in [proxy]"
            return errs(api, "overloaded", why)
        return None

    def _is_here(self, base: str) -> bool:
        """Whether an address that a path names is the proxy's own: nobody would ever answer."""
        return bool(base) and leads_to(base, self._settings.host, self._settings.port)

    def _mode(self) -> Mode:
        return mode_of(self._settings, self._switch)

    def _about(self, place: str) -> list[Piece] | None:
        """Return what the proxy says of itself at ``place``."""
        self.health.mode = self._mode()
        if place == "/metrics":
            return [Head(200, [TEXT]), self.health.metrics().encode()]
        if place not in {"/livez", "/stats"}:
            return None
        told = self.health.livez() if place == "/livez" else self.health.stats()
        return [Head(200, [JSON]), msgspec.json.encode(told)]

    async def _served(self, incoming: Incoming, receive: Receive, outgoing: Outgoing) -> None:
        """Have a request answered by its provider."""
        self._running += 1
        request = self.health.began(incoming.route.api if incoming.method == "POST" else "")
        began = current_time()
        state: Ended = "failed"
        try:
            state = await self._sent_on(incoming, receive, outgoing)
            if outgoing.is_unreached:
                state = "failed"
        except Gone:
            state = outgoing.outcome()
            raise
        finally:
            self._running -= 1
            request.ended(
                state, outgoing.status, None if outgoing.at is None else outgoing.at - began, session=outgoing.session
            )

    async def _sent_on(self, incoming: Incoming, receive: Receive, outgoing: Outgoing) -> State:
        """Send a request on, its body looked at where that is any use; return what was done with it."""
        is_bypassed = self._mode() == "bypass"
        if is_bypassed or incoming.method != "POST" or incoming.route.endpoint not in {"generate", "count", "compact"}:
            return await self._passed(incoming, receive, outgoing, "bypassed" if is_bypassed else "relayed")
        try:
            body = await received(receive, self._settings.body_bytes, incoming.headers.get("content-length", ""))
            plain = decoded(body, incoming.headers.get("content-encoding", ""), self._settings.body_bytes)
        except BadBody as error:
            return await _unread(outgoing, error, incoming.route.api)
        async with beside(partial(left, receive, lambda: outgoing.is_ended)):
            state = await self._answered(incoming, plain, outgoing)
        return state  # noqa: RET504 -- for the type checker a block may swallow a return

    # -- what is looked at ---------------------------------------------------------------------------------------------

    async def _answered(self, incoming: Incoming, body: bytes, outgoing: Outgoing) -> State:
        """Answer a request of which the whole body is here."""
        onward = self._onward(incoming)
        lens = self._opened(body, incoming.route.api)
        if lens is None or any(bytes(lens.fields.get(name, b"null")) not in UNSET for name in ELSEWHERE):
            return await self._relayed(onward, body, outgoing, incoming, "relayed")
        who = client(lens.api, incoming.headers, lens)
        scope = (who.family, who.scope)
        what = kind(who, incoming.headers, lens, has_tools_before=scope in self._with_tools)
        self._note(scope, lens)
        if what == "side":
            return await self._relayed(onward, body, outgoing, incoming, "relayed")
        asked = Asked(incoming.route, lens, onward, outgoing, self._settings.observe, self._writers(incoming, lens))
        key = session_key(who, lens)
        if incoming.route.endpoint != "generate":
            reduced = await self._reduced(key, asked)
            return await self._relayed(
                onward, reduced, outgoing, incoming, "relayed" if reduced is lens.body else "managed"
            )
        aside = what == "compaction"
        if aside and self._fits(asked) and not await self._live.knows(key):
            return await self._relayed(onward, body, outgoing, incoming, "relayed")
        return await self._managed(incoming, key, asked, outgoing, aside=aside)

    async def _managed(self, incoming: Incoming, key: str, asked: Asked, outgoing: Outgoing, *, aside: bool) -> State:
        """Answer a request by the engine; where that fails before anything was said, send it on as it is known."""
        sign = sign_of(asked.route.api, stream=asked.streams and not asked.observe)
        try:
            outgoing.session = key
            async with self._live.continued(key, asked.lens.slots, aside=aside) as session:
                try:
                    await given(answered(session, asked), outgoing, sign, self._settings.keepalive)
                    await outgoing.end()
                except Unfit as error:
                    self._degraded(error.why, "nothing that fits can be made of a request, so it is refused")
                    await _said(outgoing, await unfit(error, session, asked))
                    return error.state
        except (InvalidRequest, WindowTooSmall):  # whether it is taken as it came is its provider's to say
            if outgoing.is_answered:
                raise
            return await self._relayed(asked.onward, asked.lens.body, outgoing, incoming, "relayed")
        except UpstreamError:  # what was begun broke off: so it does for the client
            return asked.state
        except Exception as error:
            if outgoing.is_answered:
                raise
            self._degraded(error)
            return await self._relayed(asked.onward, await self._reduced(key, asked), outgoing, incoming, "unrecorded")
        return asked.state

    def _fits(self, asked: Asked) -> bool:
        """Whether a request surely fits as it is: it is far smaller than the window."""
        target = self.means.target_of(asked.lens.api, asked.lens.model or asked.route.model)
        said = sum(slot.size for slot in asked.lens.slots) + asked.lens.frame.tokens
        return said < SURELY * target.limits.window

    async def _reduced(self, key: str, asked: Asked) -> bytes:
        """Return the body by the decisions there are, as it came where that fails; nothing is written.

        A client's compaction that would not fit is made to: what is due of it is decided, and forgotten.
        """
        lens, anew = asked.lens, asked.route.endpoint == "compact"
        if asked.observe:
            return lens.body
        try:
            branch, policy = await self._live.glimpsed(key, lens.slots)
            if not (branch.slots or anew):
                return lens.body
            target = self.means.target_of(lens.api, lens.model or asked.route.model)
            limits = replace(target.limits, asked_output=lens.asked_output)
            goal = replace(target, frame=lens.frame, limits=limits)
            plan = glimpse(branch, policy, lens.slots, goal, anew=anew)
            return render(lens, send_slots(plan))
        except HoldfastError:
            return lens.body

    def _opened(self, body: bytes, api: str) -> Lens | None:
        """Return the opened body, or nothing for what is no conversation of ``api``: its provider says so."""
        try:
            lens = self._bodies.read(body, api)
        except FormatError:
            return None
        return lens if lens.slots and lens.api == api else None

    def _writers(self, incoming: Incoming, lens: Lens) -> tuple[Writer, ...]:
        """Return who writes summaries for a request: nobody, its own model, or another one with the same login."""
        wanted, own = self._settings.summaries, lens.model or incoming.route.model
        if wanted == "extract":
            return ()
        model = own if wanted == "client" else wanted
        route = incoming.route
        if route.api == "gemini":
            path = route.path.partition("?")[0].rpartition("/")[0]
            route = replace(route, path=f"{path}/{quote(model, safe='')}:generateContent", stream=False)
        to = replace(incoming, route=route)
        return (Writer(self._onward(to), self.means.target_of(lens.api, model)),)

    def _note(self, scope: tuple[str, str], lens: Lens) -> None:
        """Hold that conversations of ``scope`` have tools, if this one has."""
        if has_tools(lens):
            self._with_tools[scope] = None
            while len(self._with_tools) > SCOPES:
                del self._with_tools[next(iter(self._with_tools))]

    def _degraded(self, error: Exception, so: str = "requests go on, but are not recorded") -> None:
        """Say once that something of ours failed, and what that means."""
        if self.health.degraded(type(error).__name__, str(error)):
            sys.stderr.write(f"holdfast: {so}: {type(error).__name__}: {error}\n")

    # -- what is not ---------------------------------------------------------------------------------------------------

    def _onward(self, incoming: Incoming, *, as_it_came: bool = False) -> Onward:
        """Return where ``incoming`` goes, with its headers."""
        route = incoming.route
        base = route.base or getattr(self._settings, route.upstream)
        headers = upward(incoming.pairs, as_it_came=as_it_came)
        return Onward(self._web, address(base, route), headers, incoming.method)

    async def _passed(self, incoming: Incoming, receive: Receive, outgoing: Outgoing, state: State) -> State:
        """Send a request on as it comes in, and its answer back as it comes."""
        onward, heard = self._onward(incoming, as_it_came=True), Event()
        has_body = {"content-length", "transfer-encoding"} & incoming.headers.keys()
        body = chunks(receive, heard) if has_body else b""
        try:
            async with beside(partial(left, receive, lambda: outgoing.is_ended, heard if has_body else None)):
                await self._sent(onward.relayed(body, as_it_came=True), outgoing, incoming, state)
        except BadBody as error:
            if outgoing.is_answered:
                raise Gone from error
            return await _unread(outgoing, error, incoming.route.api)
        return state

    async def _relayed(
        self, onward: Onward, body: bytes, outgoing: Outgoing, incoming: Incoming, state: State
    ) -> State:
        """Send ``body`` on and its answer back."""
        await self._sent(onward.relayed(body), outgoing, incoming, state)
        return state

    async def _sent(self, pieces: AsyncGenerator[Piece], outgoing: Outgoing, incoming: Incoming, state: State) -> None:
        """Give ``pieces`` to the client; what never came is said in its API's words, what broke off breaks off."""
        try:
            await given(_marked(pieces, state, outgoing, incoming.route.api), outgoing, b"", 0)
            await outgoing.end()
        except UpstreamError as error:
            if not outgoing.is_answered:
                outgoing.is_unreached = True
                await _said(outgoing, errs(incoming.route.api, error.kind, str(error), status=BAD_GATEWAY))


def _has_left(error: BaseException | None) -> bool:
    """Whether an error came of it that the client left in the middle of its body."""
    while error is not None and not isinstance(error, Gone):
        error = error.__cause__ or error.__context__
    return error is not None


def _nowhere(incoming: Incoming) -> list[Piece]:
    """Return the answer to what no provider is known for: a key is sent to nobody whom it may not be for."""
    if incoming.route.place == "/" and incoming.method in {"GET", "HEAD"}:
        return [Head(200, [JSON]), b'{"proxy":"holdfast"}' if incoming.method == "GET" else b""]
    why = f"nobody is known who answers {incoming.method} {incoming.route.place[:200]}; name them: /u/https://HOST/PATH"
    return errs("", "model", why)


async def _marked(pieces: AsyncGenerator[Piece], state: State, outgoing: Outgoing, api: str) -> AsyncGenerator[Piece]:
    """Yield ``pieces``, the head with what was done; an error behind signs of life is an event of their stream."""
    async for piece in pieces:
        if isinstance(piece, Head) and outgoing.is_alive and piece.status >= FAILED:
            yield stream_event(api, Verdict("server"), message=f"the provider answered with HTTP {piece.status}")
            return
        yield marked(piece, state) if isinstance(piece, Head) else piece


async def _unread(outgoing: Outgoing, error: BadBody, api: str) -> State:
    """Send why a body was not read to its end."""
    kind = "request_bytes" if error.status == TOO_LARGE else "invalid_request"
    return await _refused(outgoing, errs(api, kind, str(error), status=error.status))


async def _refused(outgoing: Outgoing, pieces: list[Piece]) -> State:
    """Send a refusal of ours, whose head says that it is."""
    await _said(outgoing, [marked(piece, "refused") if isinstance(piece, Head) else piece for piece in pieces])
    return "refused"


async def _said(outgoing: Outgoing, pieces: list[Piece]) -> None:
    """Send a whole answer of ours."""
    for piece in pieces:
        await outgoing.give(piece)
    await outgoing.end()
