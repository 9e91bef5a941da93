"""Summaries written by a model: asked for, judged, asked for once more with the reasons, then of the next writer.

The head of a conversation goes out as text, in as many parts as the writer's window needs, or, where the provider's
cache is warm, as the last request again with one message behind it. Nothing is written down here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from anyio import move_on_after
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.compaction.summary_writer import Prefix, Terms, TooLarge, Writer, answered
from holdfast.engine.upstream.upstream import Sent
from holdfast.errors import CompactionFailed
from holdfast.events import Noticed
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import count
from holdfast.messages.sized_message import Slot
from holdfast.planning.settings import Settings
from holdfast.planning.summary import prompts
from holdfast.planning.summary.chunks import LEAST_ROOM, Part, packed, parts, room, shortened
from holdfast.planning.summary.judge import Told, Wanted, objections, tidy
from holdfast.planning.summary.must_keep import newest_identifiers, newest_request
from holdfast.planning.summary.prompts import Order
from holdfast.planning.summary.rendering import Style, rendered
from holdfast.state.plan import Ask
from holdfast.state.target import Written

__all__ = ["Prefix", "Terms", "TooLarge", "Writer", "summarise"]

WORDS = 0.5
"""Words for one token, as a writer is told its limit: prose has 0.75, paths and code less, and models overrun. [H]"""
_CAUTION = 0.9
"""Share of what a refusal says would fit that is asked for. [H]"""
_GROUP = 3
"""Summaries of parts that fit into one request to merge them, at the least. [H]"""
_Text: TypeAlias = Callable[[Order], str]
"""The request with one order or another."""


class _Work(Struct, frozen=True):
    """What is to be summarised, and what is asked of its summary."""

    head: tuple[Message, ...]
    ask: Ask
    order: Order
    wanted: Wanted


async def summarise(
    head: Sequence[Slot],
    ask: Ask,
    writers: Sequence[Writer],
    terms: Terms = Terms(),
    order: Order = Order(),
    *,
    prefix: Prefix | None = None,
) -> Written:
    """Return the summary of ``head`` that ``ask`` wants, by the first of ``writers`` who makes one that is accepted.

    Of ``order`` the user's own ``focus`` and a hook's ``context`` and ``prompt`` count; ``prefix`` is the request that
    the provider's cache holds. Raises ``CompactionFailed`` with what became of it: ``nothing_to_compact``,
    ``summary_rejected``, ``provider_error``, ``cancelled``, or ``timed_out`` after ``summary_deadline`` seconds for all
    of it; ``TooLarge``, which is one, where every writer found the request itself too large.
    """
    work = _work([slot.message for slot in head], ask, terms.settings, order)
    failed: list[CompactionFailed] = []
    with move_on_after(terms.settings.summary_deadline) as scope:
        for writer in writers:
            try:
                text = await _Desk(writer, work, terms).written(prefix)
            except CompactionFailed as error:
                if error.outcome in {"cancelled", "timed_out"}:
                    raise
                failed.append(error)
                terms.tell(Noticed(terms.session, "summary", str(error)))
            else:
                return Written(ask.stop, text)
    if scope.cancelled_caught:
        late = (
            f"no summary came in {terms.settings.summary_deadline:g} s; raise summary_deadline or name a faster model"
        )
        raise CompactionFailed(late, "timed_out")
    raise _failure(failed)


def _work(head: Sequence[Message], ask: Ask, settings: Settings, order: Order) -> _Work:
    if not rendered(head).strip():
        raise CompactionFailed("nothing was said that a summary could hold; go on without one", "nothing_to_compact")
    keep = newest_identifiers(head, settings.summary_newest, settings.summary_identifiers)
    focus = prompts.focused(order.focus, settings.summary_focus_chars)
    order = replace(order, words=int(ask.cap * WORDS), anchor=ask.anchor, keep=keep, focus=focus)
    least = min(settings.summary_least, ask.cap // 2)
    wanted = Wanted(ask.cap, least, identifiers=keep, request=newest_request(head), anchor=ask.anchor)
    return _Work(tuple(head), ask, order, replace(wanted, headings=()) if order.prompt else wanted)


def _failure(failed: Sequence[CompactionFailed]) -> CompactionFailed:
    if not failed:
        return CompactionFailed("nobody is there to write a summary; name a model, or go on with an extract")
    text = "; ".join(map(str, failed))
    if all(isinstance(error, TooLarge) for error in failed):
        return TooLarge(text)
    return CompactionFailed(text, failed[-1].outcome)


class _Desk:
    """One writer at work on one summary."""

    def __init__(self, writer: Writer, work: _Work, terms: Terms) -> None:
        self.writer, self.terms, self.settings = writer, terms, terms.settings
        self.output = writer.output(work.ask.cap, terms.settings)
        self.work, self.room = self._fitted(work)

    def _fitted(self, work: _Work) -> tuple[_Work, int]:
        """Return the work with an earlier summary that leaves room for more, and the tokens of a part."""
        whole = room(self.writer.window, self.output, 0, self.writer.ratio, self.settings)
        order = replace(work.order, anchor=shortened(work.order.anchor, whole // 3))
        fixed = count(prompts.INSTRUCTIONS + prompts.asked("", order))
        left = room(self.writer.window, self.output, fixed, self.writer.ratio, self.settings)
        return replace(work, order=order), left

    async def written(self, prefix: Prefix | None) -> str:
        """Return a summary that was accepted; ``CompactionFailed`` where none was."""
        reasons = await self._from_prefix(prefix) if prefix is not None else ()
        if isinstance(reasons, str):
            return reasons
        try:
            return await self._from_text(self.room, reasons)
        except TooLarge as error:
            return await self._from_text(self._smaller(error), reasons)

    def _smaller(self, error: TooLarge) -> int:
        """Return the tokens of a part after one was too large: by what the provider counted, else half."""
        told = sum(part.tokens for part in self._parts(self.room))
        self.output = min(self.output, error.limit // 4) if error.limit else self.output
        left = error.limit - self.output
        share = min(1.0, left / error.requested) * _CAUTION if error.limit and error.requested else 0.5
        size = int(min(self.room, told) * share)
        if size < LEAST_ROOM:
            raise error
        return size

    def _parts(self, size: int) -> tuple[Part, ...]:
        style = Style(self.settings.summary_result_chars, self.settings.summary_argument_chars)
        return parts(self.work.head, size, style)

    # -- one request after the other -----------------------------------------------------------------------------------

    async def _from_prefix(self, prefix: Prefix) -> str | tuple[str, ...]:
        """Return the summary that is asked for behind the last request, or why there is none; nothing if not asked."""
        text = prompts.appended(self.work.order)
        sent = prefix.request(self.writer, text) if prefix.stop >= self.work.ask.stop else None
        if sent is None:
            return ()
        try:
            return await self._judged(sent, self.work.wanted, prefix.tokens + count(text))
        except TooLarge:
            return ()

    async def _from_text(self, size: int, reasons: tuple[str, ...]) -> str:
        """Return the summary of the head told as text, part by part if it must be."""
        order, found = self.work.order, self._parts(size)
        if len(found) == 1:
            text = found[0].text
            return await self._accepted(lambda told: prompts.asked(text, told), order, self._wanted(found), reasons)
        stage = self._folded if self.settings.summary_stages == "fold" else self._merged
        return await stage(found, size, reasons)

    async def _folded(self, found: Sequence[Part], size: int, reasons: tuple[str, ...]) -> str:
        """Return the summary that each part brought up to date in turn."""
        cap = self._cap(size)
        anchor = self.work.order.anchor
        for number, part in enumerate(found, 1):
            is_last = number == len(found)
            told = replace(self.work.order if is_last else self._partial(cap), anchor=anchor)
            wanted = self._wanted(found) if is_last else self._rough(cap, part.tokens)
            make = _of_part(part, prompts.place(number, len(found)))
            anchor = await self._accepted(make, told, wanted, reasons if is_last else ())
        return anchor

    async def _merged(self, found: Sequence[Part], size: int, reasons: tuple[str, ...]) -> str:
        """Return the summary made of summaries of the parts; the earlier one comes in at the end."""
        cap = self._cap(size)
        order = self._partial(cap)
        made: list[str] = []
        for number, part in enumerate(found, 1):
            told = replace(order, keep=self.work.order.keep) if number == len(found) else order
            make = _of_part(part, prompts.place(number, len(found)))
            made.append(await self._accepted(make, told, self._rough(cap, part.tokens)))
        while len(groups := _grouped(made, size)) > 1:
            rough = self._rough(cap, count(made[0]))
            made = [await self._accepted(_of_group(group), order, rough) for group in groups]
        return await self._accepted(_of_group(made), self.work.order, self._wanted(found), reasons)

    async def _accepted(self, make: _Text, order: Order, wanted: Wanted, reasons: tuple[str, ...] = ()) -> str:
        """Return the first answer that is accepted; who was refused is told why and asked once more."""
        for _ in range(max(1, self.settings.summary_reminders + (not reasons))):
            text = make(replace(order, reasons=reasons))
            sent = self.writer.request(text, self.output)
            found = await self._judged(sent, wanted, count(prompts.INSTRUCTIONS + text))
            if isinstance(found, str):
                return found
            reasons = found
        model = self.writer.target.model
        why = "; ".join(reason.partition("; ")[0] for reason in reasons)  # what is behind it is said to the model
        text = f"{model} wrote no summary that is accepted: {why}; name another model for summaries, or none"
        raise CompactionFailed(text, "summary_rejected")

    async def _judged(self, sent: Sent, wanted: Wanted, tokens: int) -> str | tuple[str, ...]:
        """Return the summary that the answer to ``sent`` is, or why it is none."""
        answer = await answered(self.writer, sent, self.terms, tokens)
        text = tidy(answer.message.text)
        stop = "end" if answer.stop == "unknown" and answer.complete and not answer.native_stop else answer.stop
        calls = tuple([call.name for call in answer.message.calls])
        reasons = objections(Told(text, self.writer.tokens(text), stop, calls), wanted)
        if reasons:
            self.terms.tell(Noticed(self.terms.session, "summary", f"refused: {'; '.join(reasons)}"))
        return reasons or text

    # -- what is asked of parts ----------------------------------------------------------------------------------------

    def _cap(self, size: int) -> int:
        """Return the real tokens that the summary of one part may have: several must fit into one request."""
        return min(self.work.ask.cap, int(size * self.writer.ratio) // _GROUP)

    def _partial(self, cap: int) -> Order:
        return replace(self.work.order, words=int(cap * WORDS), anchor="", keep=())

    def _rough(self, cap: int, source: int) -> Wanted:
        """Return what is asked of the summary of one part, which has ``source`` tokens."""
        return Wanted(cap, self._least(source, cap), self.work.wanted.headings)

    def _wanted(self, found: Iterable[Part]) -> Wanted:
        source = sum(part.tokens for part in found) + count(self.work.order.anchor)
        return replace(self.work.wanted, least=self._least(source, self.work.ask.cap))

    def _least(self, source: int, cap: int) -> int:
        return min(self.settings.summary_least, int(source * self.writer.ratio) // 2, cap // 2)


def _of_part(part: Part, place: str) -> _Text:
    return lambda order: prompts.asked(part.text, order, place)


def _of_group(group: Sequence[str]) -> _Text:
    return lambda order: prompts.merging(group, order)


def _grouped(made: Sequence[str], size: int) -> list[list[str]]:
    """Return neighbouring summaries together, as many as fit into one request; all of them where that is no use."""
    atoms = [Part(number, number + 1, text, count(text)) for number, text in enumerate(made)]
    groups = [[one.text for one in group] for group in packed(atoms, size)]
    return groups if len(groups) < len(made) else [list(made)]
