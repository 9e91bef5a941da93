"""The proxy as an ASGI application: the way of a request, from its first byte to the last of its answer.

It is *admitted* (``admission``), unless it asks for what the proxy tells itself or is refused at once (``replies``);
*read*, unless it is of no use here and passes as it comes (``incoming``, ``unpacking``, ``forwarding``);
*identified*: who asks, what for, in which conversation (``clients``, ``identity``);
*planned*: the branch that it continues is found, and what would not fit gives way (``open_branches``, ``answering``);
*sent* to its provider, and again where that takes less, and its answer *relayed* as it comes (``relay``, ``outgoing``);
*recorded*: what was said and decided stands in the log, what became of it is counted (``health``).

The methods of ``Proxy`` stand in this order, and each hands a request on to the next.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError, Lock, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

import httpx2
from anyio import move_on_after, to_thread
from msgspec.structs import replace

from holdfast.config.addresses import leads_to
from holdfast.engine.compaction.summarizer import Writer
from holdfast.engine.engine_resources import Means
from holdfast.engine.log.conversation_diff import glimpse
from holdfast.engine.requests import of_body
from holdfast.errors import (
    FormatError,
    HoldfastError,
    InvalidRequest,
    StoreError,
    StoreGone,
    StoreLocked,
    StoreReadOnly,
    UpstreamError,
)
from holdfast.normalize.projection import send_slots
from holdfast.providers.common.json.surrogates import whole
from holdfast.providers.request_body import Lens, render
from holdfast.proxy.answer import Unfit, answer, has_room, in_words, surely_fits, unfit
from holdfast.proxy.concurrent import beside
from holdfast.proxy.conversation.body_cache import Bodies
from holdfast.proxy.conversation.cache import STALE, OpenBranches
from holdfast.proxy.conversation.clients import Tooled, client, kind
from holdfast.proxy.conversation.identity import session_key
from holdfast.proxy.exchange import Exchange, Turn
from holdfast.proxy.forward import forward, give_back, pass_through
from holdfast.proxy.http.access import Refusal, refusal
from holdfast.proxy.http.count_tokens import unwrapped
from holdfast.proxy.http.decompress import BadBody, decoded
from holdfast.proxy.http.headers import State, is_subscription, upward
from holdfast.proxy.http.relay import Onward, Piece
from holdfast.proxy.http.request import (
    BodyReceiver,
    Gone,
    Incoming,
    Receive,
    Scope,
    has_left,
    throw_away_rest,
    watch_client,
    whole_body,
)
from holdfast.proxy.http.response import Outgoing, Send, deliver, sign_of
from holdfast.proxy.http.routes import Route, address, asking
from holdfast.proxy.metrics.health import Ended, Health
from holdfast.proxy.modes import Mode, mode_of
from holdfast.proxy.replies import about, error_reply, refuse, refuse_body, send_whole
from holdfast.proxy.settings import Settings
from holdfast.store.base import SessionStore

READ = frozenset({"generate", "count", "compact"})
"""Endpoints whose bodies are looked at."""
ELSEWHERE = frozenset({"previous_response_id", "conversation", "background"})
"""Fields of Responses by which the conversation is kept by the provider: there is nothing here to look at."""
UNSET = (b"null", b"false")
ENDED = "holdfast was stopped before the answer came; try again when it runs"
"""What a client is told that still waits for an answer when the server ends."""
NOT_ASKED = (
    "summaries are made without a model: none is asked for with the login of a subscription; "
    "set summaries to client for its own"
)
"""What is said where somebody asked for the summaries of a model that is not asked for them."""
UNFIT = "nothing that fits can be made of a request, so it is refused"
"""What it means that a window is too small for a request."""
GOES_ON = "what may fit all the same goes on as it is known"
"""The same, where its provider may know better."""
PATIENCE = 1.0
"""[H] Seconds in which a client takes the few words that it gets instead of an answer."""
AFTER = 5.0
"""[H] Seconds after which a store whose disk took no write is tried again."""
TRIES = 2
"""[H] Times that a turn begins once more where the store, or its log, turned out to be another one."""


class Proxy:
    """Answers clients with what their provider answers, for requests that are made to fit."""

    _settings: Settings
    _branches: OpenBranches

    def __init__(
        self,
        means: Means,
        web: httpx2.AsyncClient,
        health: Health,
        reopen: Callable[[], SessionStore] | None = None,
        switch: Path | None = None,
    ) -> None:
        self.means, self.health = means, health
        self._web, self._reopen, self._switch = web, reopen, switch
        self._opening, self._opened_at = Lock(), -inf
        self._bodies, self._tooled = Bodies(), Tooled()
        health.mode = self._mode

    def use(self, settings: Settings, branches: OpenBranches) -> None:
        """Let later requests be answered by ``settings``; what is under way ends as it began."""
        self._settings, self._branches = settings, branches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what is done for it is given up where its client leaves."""
        if scope["type"] != "http":
            return
        incoming, outgoing = Incoming.of(scope), Outgoing(send)
        try:
            if why := self._barred(incoming):
                await self._refuse(incoming, outgoing, why)
            elif told := self._told(incoming):
                await send_whole(outgoing, told)
            elif why := self._unanswerable(incoming):
                await self._refuse(incoming, outgoing, why)
            else:
                await self._counted(incoming, receive, outgoing)
        except CancelledError:  # the server ends, and waits no longer
            await _unanswered(incoming, outgoing, "overloaded", ENDED)
            raise
        except Exception as error:  # noqa: BLE001 -- a client is told, whatever it is
            if has_left(error):
                return
            self._degrade(error, "a request could not be answered")
            await _unanswered(incoming, outgoing, "server", f"holdfast failed: {type(error).__name__}")

    # -- admitted ------------------------------------------------------------------------------------------------------

    def _barred(self, incoming: Incoming) -> Refusal | None:
        """Return why who asks is not answered; nothing where they are."""
        return refusal(incoming.headers, self._settings.host, self._settings.token)

    def _told(self, incoming: Incoming) -> list[Piece] | None:
        """Return what the proxy tells of itself, where that is asked and not the same of somebody behind it."""
        route = incoming.route
        is_for_another = self._leads_on(route) and (route.base or route.place == "/")
        if incoming.method not in {"GET", "HEAD"} or is_for_another:
            return None
        return about(route.place, self.health)

    def _unanswerable(self, incoming: Incoming) -> Refusal | None:
        """Return why nobody can be asked for an answer; nothing where somebody can."""
        method, route, now = incoming.method, incoming.route, self.health.under_way
        if method == "CONNECT":
            why = "no tunnels are made here; point the client at this address, or at /u/https://HOST below it"
            return Refusal("invalid_request", why, 405)
        if not self._leads_on(route):  # a key is sent to nobody whom it may not be for
            return Refusal("invalid_request", _nobody(incoming), 404)
        if route.endpoint == "probe":
            return Refusal("invalid_request", "WebSockets are not spoken here; send POST over HTTP", 426)
        if now >= self._settings.concurrent:
            why = f"{now} requests are being answered already; try again, or raise concurrent in [proxy]"
            return Refusal("overloaded", why)
        return None

    def _leads_on(self, route: Route) -> bool:
        """Whether there is somebody who answers: a provider, or whom the path names, where that is not the proxy."""
        if not route.base:
            return bool(route.upstream)
        return not leads_to(route.base, self._settings.host, self._settings.port)

    async def _refuse(self, incoming: Incoming, outgoing: Outgoing, why: Refusal) -> None:
        """Say ``why`` a request is not answered, and count that."""
        await refuse(outgoing, error_reply(incoming.route.api, why.kind, why.why, status=why.status))
        self.health.refused(_posted_to(incoming), outgoing.status)

    # -- read, and recorded in the end ---------------------------------------------------------------------------------

    async def _counted(self, incoming: Incoming, receive: Receive, outgoing: Outgoing) -> None:
        """Have a request answered by its provider, and count what became of it."""
        request = self.health.began(_posted_to(incoming))
        outgoing.when_told = request.answered
        began = get_running_loop().time()
        state: Ended = "failed"
        try:
            state = await self._read_or_passed(incoming, receive, outgoing)
            if outgoing.is_unreached:
                state = "failed"
        except Gone:
            state = outgoing.if_left()
            raise
        finally:
            waited = None if outgoing.first_byte_at is None else outgoing.first_byte_at - began
            request.ended(state, outgoing.status, waited, session=outgoing.session)

    async def _read_or_passed(self, incoming: Incoming, receive: Receive, outgoing: Outgoing) -> State:
        """Answer a request, its body read where that is of any use; return what was done with it."""
        is_bypassed = self._mode() == "bypass"
        if is_bypassed or incoming.method != "POST" or incoming.route.endpoint not in READ:
            exchange = Exchange(incoming, self._onward(incoming, as_it_came=True), outgoing)
            return await pass_through(exchange, receive, "bypassed" if is_bypassed else "relayed")
        receive = BodyReceiver(receive)
        try:
            body = await self._read(incoming, receive)
        except BadBody as error:
            if incoming.closes:
                outgoing.before_end = partial(throw_away_rest, receive)
            return await refuse_body(outgoing, error, incoming.route.api)
        with beside(partial(watch_client, receive, lambda: outgoing.is_ended)):
            state = await self._by_purpose(Exchange(incoming, self._onward(incoming), outgoing), body)
        return state  # noqa: RET504 -- for the type checker a block may swallow a return

    async def _read(self, incoming: Incoming, receive: Receive) -> bytes:
        """Return the whole body, unpacked."""
        most, headers = self._settings.body_bytes, incoming.headers
        body = await whole_body(receive, most, headers.get("content-length", ""))
        packed = headers.get("content-encoding", "")
        return await to_thread.run_sync(decoded, body, packed, most) if packed else decoded(body, packed, most)

    async def _by_purpose(self, exchange: Exchange, body: bytes) -> State:
        """Answer a request of which the whole body is here, by what it is for; who only looks sends that body on."""
        if self._settings.observe:
            exchange = replace(exchange, onward=exchange.onward.saying(body))
        body, wrapped = unwrapped(body, exchange.route)
        lens = await self._open(body, exchange.api)
        turn = None if lens is None else self._identify(exchange, lens)
        if lens is None or turn is None:
            return await forward(exchange, wrapped(body if lens is None else lens.body), "relayed")
        if turn.route.endpoint == "count":
            reduced = await self._reduce(turn)
            return await forward(turn, wrapped(reduced), "relayed" if reduced is turn.lens.body else "managed")
        if turn.is_summary and await self._is_alone(turn):
            turn = replace(turn, is_unkept=True)
        if turn.is_unkept and turn.observe:
            return await forward(turn, turn.lens.body, "relayed")
        return await self._manage(turn)

    async def _is_alone(self, turn: Turn) -> bool:
        """Whether a request most likely needs nothing of ours: it is small, and nothing was said in its session."""
        target = self.means.target_of(turn.api, turn.model)
        return surely_fits(turn, target) and not await self._branches.knows(turn.session)

    # -- identified ----------------------------------------------------------------------------------------------------

    def _identify(self, exchange: Exchange, lens: Lens) -> Turn | None:
        """Return the conversation that a body is part of; nothing for what is beside one, or is none of ours."""
        incoming = exchange.incoming
        if any(bytes(lens.fields[name]) not in UNSET for name in ELSEWHERE & lens.fields.keys()):
            return None
        who = client(lens.api, incoming.headers, lens)
        what = kind(who, incoming.headers, lens, has_tools_before=self._tooled.had(who, lens))
        if what == "side":
            return None
        return Turn(
            incoming,
            exchange.onward,
            exchange.outgoing,
            lens,
            session_key(who, lens, incoming.route.base),
            is_summary=what == "compaction",
            is_unkept=incoming.route.endpoint == "compact",
            observe=self._settings.observe,
            writers=self._writers(incoming, lens) if incoming.route.endpoint == "generate" else (),
        )

    async def _open(self, body: bytes, api: str) -> Lens | None:
        """Return the opened body, or nothing for what is no conversation of ``api``: its provider says so."""
        try:
            lens = await self._read_whole(body, api)
        except FormatError:
            return None
        return lens if lens.slots and lens.api == api else None

    async def _read_whole(self, body: bytes, api: str) -> Lens:
        """Return ``body`` opened, without what makes it unreadable to its provider too; ``FormatError`` for no body."""
        try:
            return await self._bodies.read(body, api)
        except FormatError:
            if (mended := await self._bodies.aside(body, whole)) is body:
                raise
        return await self._bodies.read(mended, api)

    def _writers(self, incoming: Incoming, lens: Lens) -> tuple[Writer, ...]:
        """Return who writes summaries for a request: nobody, its own model, or another one with the same key.

        The login of a subscription is for what its client asks; for another model it is not used.
        """
        wanted, route = self._settings.summaries, incoming.route
        if wanted == "extract":
            return ()
        if wanted != "client" and is_subscription(incoming.headers):
            if self.health.noted(NOT_ASKED):
                _write(NOT_ASKED)
            return ()
        model = (lens.model or route.model) if wanted == "client" else wanted
        if route.api == "gemini":
            route = asking(route, model)
        to = replace(incoming, route=route)
        return (Writer(self._onward(to), self.means.target_of(lens.api, model)),)

    # -- planned, sent and relayed -------------------------------------------------------------------------------------

    async def _manage(self, turn: Turn, tries: int = TRIES) -> State:
        """Answer a turn by the engine; where that fails before anything was said, without what failed.

        Where the log is another one than was held in memory the turn begins once more, by that.
        """
        outgoing, used = turn.outgoing, (self.means.store, self._branches)
        outgoing.session = turn.session
        try:
            return await self._continued(turn)
        except InvalidRequest:  # whether it is taken as it came is its provider's to say
            if outgoing.is_answered:
                raise
            return await forward(turn, turn.lens.body, "relayed")
        except UpstreamError:  # what was begun broke off: so it does for the client
            return turn.state
        except Exception as error:
            if outgoing.is_answered and outgoing.if_left() == "failed":
                raise
            is_new = isinstance(error, StoreError) and await self._is_new(error, *used)
            if not outgoing.is_answered and tries and (is_new or isinstance(error, STALE)):
                return await self._manage(turn, tries - 1)
            if not (outgoing.is_answered and isinstance(error, STALE)):  # what somebody removed is none of a fault
                self._degrade(error)
            if not outgoing.is_answered:
                return await self._unrecorded(turn, error)
            await outgoing.end()  # all of the answer was given out; the next request brings it along
            return "unrecorded"

    async def _unrecorded(self, turn: Turn, why: Exception) -> State:
        """Answer a turn that cannot be recorded, and ``why``: by a copy of its branch, else as it is known.

        What is decided on the copy is forgotten once the store takes something again, so that no model is asked for a
        summary there. A store that was waited for in vain is not read once more.
        """
        turn.outgoing.state, reads_on = "unrecorded", True
        if isinstance(why, StoreError) and not (turn.is_unkept or turn.observe):
            try:
                return await self._continued(replace(turn, is_unkept=True, writers=()))
            except UpstreamError:  # what was begun broke off
                return "unrecorded"
            except Exception as error:
                if turn.outgoing.is_answered:
                    raise
                if not isinstance(error, HoldfastError):
                    self._degrade(error)
                reads_on = not isinstance(error, StoreLocked)
        return await self._as_known(turn, await self._reduce(turn) if reads_on else turn.lens.body, "unrecorded")

    async def _continued(self, turn: Turn) -> State:
        """Let the session that a turn belongs to go on with it, and give its answer to the client.

        Its run plans, sends and records; what comes of that is relayed piece by piece.
        """
        sign = sign_of(turn.api, stream=turn.streams and not turn.observe)
        if turn.is_unkept:
            hold = partial(self._branches.copied, stays=turn.outgoing.state == "unrecorded")
        else:
            hold = partial(self._branches.continued, aside=turn.is_summary)
        async with hold(turn.session, turn.lens.slots) as session:
            try:
                await deliver(answer(session, turn), turn.outgoing, sign, self._settings.keepalive)
                await turn.outgoing.end()
            except Unfit as error:
                self._degrade(error.why, GOES_ON if error.goes_on else UNFIT, is_ours=not has_room(session, turn))
                if not error.goes_on:
                    await send_whole(turn.outgoing, await unfit(error, session, turn))
                    return error.state
            else:
                return turn.state
        return await self._as_known(turn, await self._reduce(turn), "relayed")

    async def _as_known(self, turn: Turn, body: bytes, state: State) -> State:
        """Send ``body`` on, what is known of ``turn``; its answer comes back, an overflow in the client's words."""
        pieces = turn.onward.relay(body)
        if not turn.observe:
            pieces = in_words(pieces, turn, self.means.target_of(turn.api, turn.model))
        return await give_back(pieces, turn, state)

    async def _is_new(self, error: StoreError, store: SessionStore, branches: OpenBranches) -> bool:
        """Whether others are in use now than ``store`` or ``branches``; a store that failed for good is opened anew."""
        async with self._opening:
            if self._is_over(error) and self.means.store is store and self._reopen is not None:
                self._opened_at = get_running_loop().time()
                try:
                    await self.means.in_worker(partial(self._renew, self._reopen))
                except (StoreError, OSError):
                    return False  # the one there is takes no more either, and is looked at again later
                if isinstance(error, StoreGone):
                    self._degrade(error, "the store was opened anew, what is said from now on is in that")
        return self.means.store is not store or self._branches is not branches

    def _is_over(self, error: StoreError) -> bool:
        """Whether a store takes no more: its file is gone, or its disk was full, which is looked at now and then."""
        is_due = get_running_loop().time() - self._opened_at >= AFTER
        return isinstance(error, StoreGone) or (isinstance(error, StoreReadOnly) and is_due)

    def _renew(self, reopen: Callable[[], SessionStore]) -> None:
        """Take another store in the place of the one there is; what was begun with that fails from then on.

        All of it is one step, whoever leaves meanwhile: no branch goes on in a store that is closed.
        """
        before, self.means.store = self.means.store, reopen()
        before.close()
        self.use(self._settings, self._branches.anew())

    # -- what several of these need ------------------------------------------------------------------------------------

    async def _reduce(self, turn: Turn) -> bytes:
        """Return the body by the decisions there are, as it came where that fails; nothing is written."""
        lens = turn.lens
        if turn.observe:
            return lens.body
        try:
            branch, policy = await self._branches.glimpsed(turn.session, lens.slots)
            if not branch.slots:
                return lens.body

            def reduced(_: bytes) -> bytes:
                target = of_body(self.means.target_of(lens.api, turn.model), lens).target
                return render(lens, send_slots(glimpse(branch, policy, lens.slots, target)))

            return await self._bodies.aside(lens.body, reduced)
        except HoldfastError:
            return lens.body

    def _onward(self, incoming: Incoming, *, as_it_came: bool = False) -> Onward:
        """Return where ``incoming`` goes, with its headers."""
        route = incoming.route
        base = route.base or getattr(self._settings, route.upstream)
        headers = upward(incoming.pairs, as_it_came=as_it_came)
        return Onward(self._web, address(base, route), headers, incoming.method)

    def _mode(self) -> Mode:
        return mode_of(self._settings, self._switch)

    def _degrade(
        self, error: Exception, so: str = "requests go on, but are not recorded", *, is_ours: bool = True
    ) -> None:
        """Say once that something failed, and what that means; whether all is well it tells where it ``is_ours``."""
        if self.health.went_wrong(type(error).__name__, str(error), is_ours=is_ours):
            _write(f"{so}: {type(error).__name__}: {error}")


async def _unanswered(incoming: Incoming, outgoing: Outgoing, kind: str, why: str) -> None:
    """Tell a client ``why`` it gets no answer, unless it has the beginning of one."""
    if not outgoing.status:
        with move_on_after(PATIENCE, shield=True):
            await send_whole(outgoing, error_reply(incoming.route.api, kind, why))


def _write(line: str) -> None:
    """Write ``line`` on standard error, which nobody may read, or which there may not be."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"holdfast: {line}\n")


def _nobody(incoming: Incoming) -> str:
    """Return that nobody is known who answers, and where the client is to be pointed then."""
    here = f"http://{incoming.headers.get('host', '')[:100] or 'HOST:PORT'}/u/"
    return (
        f"nobody is known who answers {incoming.method} {incoming.route.place[:200]}; set the client's base address to "
        f"{here} with its server's own behind it, as {here}https://openrouter.ai/api/v1"
    )


def _posted_to(incoming: Incoming) -> str:
    """Return the API for which a request counts: what is not posted to one is no request of it."""
    return incoming.route.api if incoming.method == "POST" else ""
