"""A session: a journal and an upstream that answers it, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from anyio import CancelScope, CapacityLimiter, Lock, to_thread
from msgspec import Raw
from msgspec.structs import replace

from holdfast.errors import FormatError, UpstreamError
from holdfast.model.entries import Usage
from holdfast.model.messages import Message
from holdfast.model.slots import Slot
from holdfast.model.target import Target, World
from holdfast.runtime.journal import Journal, Prepared
from holdfast.runtime.upstream import Reply, Upstream
from holdfast.wire.answers import Answer, answer
from holdfast.wire.lens import body, open_body
from holdfast.wire.overflow import ErrorReport, Verdict, classify

T = TypeVar("T")

_CUT = 400
"""Characters of a provider's own words that an error repeats."""
_ADVICE = {
    "auth": "check the key",
    "billing": "check the account",
    "quota": "check the account",
    "model": "check the model's name",
}


class Session:
    """One conversation with one model. ``ask`` and ``append`` run one after the other, in the order of their calls.

    ``worker`` is the one thread at a time that the store is used by: sessions of one store share it.
    """

    def __init__(
        self, journal: Journal, upstream: Upstream, target: Target, *, worker: CapacityLimiter | None = None
    ) -> None:
        self.journal = journal
        self.upstream = upstream
        self.target = target
        self._worker = worker or CapacityLimiter(1)
        self._turn = Lock()

    async def append(self, *said: Message | Slot) -> list[str]:
        """Append messages and return the ids of their entries."""
        async with self._turn:
            return await self._store(lambda: self.journal.append(*said))

    async def ask(self, frame_fields: Mapping[str, Any] = MappingProxyType({}), *, world: World = World()) -> Answer:
        """Return the model's answer to all that was said; it is in the log. ``frame_fields`` are the body's others.

        Raises ``UpstreamError`` where the provider refuses or does not answer; the log then tells the failure, and the
        same request may be asked again.
        """
        async with self._turn:
            target = framed(self.target, frame_fields)
            prepared = await self._store(lambda: self.journal.prepare(target, world))
            try:
                told = await self._told(prepared, rendered(prepared, frame_fields))
            except UpstreamError as error:
                reason = f"{error.kind}: {error}"
                await self._store(lambda: self.journal.fail(reason))
                raise
            await self._store(lambda: self.journal.record(*as_said(told, target.api)))
            return told

    async def _told(self, prepared: Prepared, request: bytes) -> Answer:
        """Return what the provider says; its refusals are raised."""
        told = told_by(await self.upstream.send(request, prepared.target.model), prepared)
        if told.error is not None:
            raise _refused(told.error, classify(told.error))
        return told

    async def _store(self, verb: Callable[[], T]) -> T:
        """Return what ``verb`` returns, done in the worker; it is done to its end even where the caller gives up."""
        with CancelScope(shield=True):
            done = await to_thread.run_sync(verb, limiter=self._worker)
        return done  # noqa: RET504 -- for the type checker a scope may swallow a return


def rendered(prepared: Prepared, frame_fields: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return the body of a prepared request."""
    target = prepared.target
    return body(target.api, target.model, prepared.slots, frame_fields=frame_fields, options=prepared.plan.options)


def framed(target: Target, frame_fields: Mapping[str, Any]) -> Target:
    """Return ``target`` with what the fields beside the messages say: the frame, and the output asked for."""
    head = open_body(body(target.api, target.model, (), frame_fields=frame_fields), target.api)
    limits = replace(target.limits, asked_output=head.asked_output)
    return replace(target, frame=head.frame, limits=limits)


def told_by(reply: Reply, prepared: Prepared) -> Answer:
    """Return what a reply says, an error of any shape as an answer with ``error``."""
    target = prepared.target
    try:
        told = answer(target.api, reply.body)
    except FormatError as error:
        told = Answer()
        if _is_fine(reply):
            raise UpstreamError(f"HTTP {reply.status} came without an answer: {error}; try again", "server") from error
    if _is_fine(reply) and told.error is None:
        return told
    said = told.error or ErrorReport(target.api, body=reply.body)
    status = said.status if _is_fine(reply) else reply.status
    sizes = {"estimate": prepared.plan.after, "window": target.limits.window}
    return replace(told, error=replace(said, status=status, headers=reply.headers, **sizes))


def _is_fine(reply: Reply) -> bool:
    return 200 <= reply.status < 300


def _refused(report: ErrorReport, verdict: Verdict) -> UpstreamError:
    said = report.message or (report.body.decode("utf-8", "replace") if isinstance(report.body, bytes) else "")
    status = f"HTTP {report.status}" if report.status else "an error"
    numbers = f", {verdict.requested:,} of {verdict.limit:,} tokens" if verdict.requested and verdict.limit else ""
    cure = "send less: compact first" if verdict.is_overflow else _ADVICE.get(verdict.kind, "try again later")
    words = " ".join(said.split())[:_CUT]
    text = f"the provider answered with {status} ({verdict.kind}{numbers}): {words}; {cure}"
    return UpstreamError(text, verdict.kind, verdict.retry_after)


def as_said(told: Answer, api: str) -> tuple[Slot, Usage, str]:
    """Return an answer as the log takes it: in the provider's own bytes."""
    raw = Raw(b",".join(told.history)) if told.history else None
    return Slot(told.message, api=api, raw=raw), told.usage or Usage(), told.stop
