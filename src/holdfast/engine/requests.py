"""Requests as they are handed in: words to say, or a whole body of a provider's API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.compaction.summary_writer import Writer
from holdfast.engine.log.journal import Prepared
from holdfast.engine.upstream.upstream import Sent, Upstream
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.common.server_compaction import betas, headers
from holdfast.providers.recognize import body_fields, spoken
from holdfast.providers.registry import form_of
from holdfast.providers.request_body import Lens, body, measured, open_body, render, whole_frame
from holdfast.state.target import Target

Words: TypeAlias = str | Message | Slot
"""Something to say: a text is the user's."""
Asked: TypeAlias = Words | Sequence[Words] | bytes | Mapping[str, Any] | Lens | None
"""Words to append · a body with the whole conversation, or one that was opened · nothing, to go on with what the log
holds."""
OUTPUT = 16_000
"""[H] Tokens asked for where an API must be told a limit and nobody says one: few answers of an agent are longer."""
_STREAMED: Mapping[str, Mapping[str, Any]] = {
    "anthropic": {"stream": True},
    "openai-chat": {"stream": True, "stream_options": {"include_usage": True}},
    "openai-responses": {"stream": True},
    "gemini": {},
}
"""Fields that ask for events, and for the usage at their end."""


class Way(Struct, frozen=True):
    """What a request says beside its body: where it goes, and how."""

    stream: bool | None = None
    """Whether the provider is asked for events; by default as the body says, and for words it is."""
    model: str = ""
    """The model of a body that names none (Gemini says it in the address)."""
    upstream: Upstream | None = None
    """Who is asked, where it is not whom the engine asks."""
    as_it_is: bool = False
    """Whether the body goes out whatever is decided: it is looked at and written down, no more."""
    writers: tuple[Writer, ...] = ()
    """Models that write summaries for this request, before those of the engine."""


class Request(Struct, frozen=True):
    """What goes out beside the messages that are planned: a target, and the fields or the body they stand in."""

    target: Target
    fields: Mapping[str, Any] = MappingProxyType({})
    lens: Lens | None = None
    """The body that the caller handed in, where it was one: what nothing touched keeps its bytes."""
    stream: bool = True
    output: int | None = None
    """The most tokens that the answer may have, where recovery asks for fewer than the caller does."""
    takes_silence: bool = False
    """Whether an answer that says nothing is taken as it comes: it was asked again for one already."""
    way: Way = Way()

    def body(self, prepared: Prepared, slots: Sequence[Slot] | None = None) -> bytes:
        """Return the body that shows ``slots``, those of ``prepared`` by default."""
        if self.way.as_it_is and self.lens is not None:
            return self.lens.body
        shown, options = prepared.slots if slots is None else slots, prepared.plan.options
        if options.max_tokens is None:
            options = replace(options, max_tokens=self.output)
        if self.lens is not None:
            return render(self.lens, shown, options)
        api, model = self.target.api, self.target.model
        return body(api, model, shown, frame_fields=self.fields, options=options)

    def is_own(self, body: bytes) -> bool:
        """Whether ``body`` is the caller's own, untouched."""
        return self.lens is not None and body is self.lens.body

    def sent(self, prepared: Prepared, slots: Sequence[Slot] | None = None) -> Sent:
        """Return what goes to the provider."""
        api, made = self.target.api, self.body(prepared, slots)
        relayed = self.way.upstream is not None and self.is_own(made)  # its client says what it needs
        wanted = () if relayed else betas(api, made)
        return Sent(api, made, self.target.model, stream=self.stream, headers=headers({}, wanted))


def of_words(target: Target, fields: Mapping[str, Any], way: Way = Way()) -> Request:
    """Return the request to ``target`` with ``fields`` beside its messages."""
    stream = way.stream is not False
    told = {**_needed(target), **(_STREAMED[target.api] if stream else {}), **fields}
    try:
        head = open_body(body(target.api, target.model, (), frame_fields=told), target.api)
    except (TypeError, msgspec.EncodeError) as error:
        raise FormatError(f"the fields beside the messages are no JSON: {error}; give plain values") from None
    limits = replace(target.limits, asked_output=head.asked_output, least_output=head.least_output)
    return Request(replace(target, frame=whole_frame(head), limits=limits), told, stream=stream, way=way)


def _needed(target: Target) -> dict[str, int]:
    """Return the field that an API must be told, where nobody else says it: the longest answer of the Messages API."""
    if target.api != "anthropic":
        return {}
    return {"max_tokens": min(target.limits.max_output or OUTPUT, OUTPUT)}


def framed(target: Target, fields: Mapping[str, Any] = MappingProxyType({})) -> Target:
    """Return ``target`` with what the fields beside the messages say: the frame, and the output asked for."""
    return of_words(target, fields, Way(stream=False)).target


def rendered(prepared: Prepared, fields: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return the body of a prepared request that has ``fields`` beside its messages, and what its API must be told."""
    return Request(prepared.target, {**_needed(prepared.target), **fields}).body(prepared)


def of_body(target: Target, lens: Lens, way: Way = Way()) -> Request:
    """Return the request that the opened body ``lens`` is; ``way`` says whether it streams where the body does not."""
    limits = replace(target.limits, asked_output=lens.asked_output, least_output=lens.least_output)
    stream = bool(way.stream) or lens.streams
    return Request(replace(target, frame=lens.frame, limits=limits), lens=lens, stream=stream, way=way)


def opened(given: bytes | Mapping[str, Any] | Lens, api: str | None = None, *, is_told: bool = True) -> Lens:
    """Return a body with its messages measured; ``FormatError`` for what is none.

    ``api`` is what it speaks; a body with no messages there may be one of another API. Where nobody ``is_told`` so, a
    body of another API may also be known by what only that has.
    """
    if isinstance(given, Lens):
        return given if given.told is not None else measured(given)
    try:
        data = given if isinstance(given, bytes) else write(given)
    except (TypeError, ValueError) as error:
        raise FormatError(f"this body is no JSON: {error}; give plain dicts, lists, texts and numbers") from None
    if api is not None and not is_told:
        api = spoken(body_fields(data), api)
    lens = open_body(data, api)
    if api is not None and form_of(api).field not in lens.fields:
        lens = open_body(data)
    return measured(lens)


def words(given: Asked) -> list[Message | Slot]:
    """Return what is to be said, a text as the user's; ``FormatError`` for what is nothing to say."""
    if given is None:
        return []
    listed: Iterable[Any] = given if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    return [_message(one) for one in listed]


def _message(one: Any) -> Message | Slot:
    if isinstance(one, str):
        return Message.of("user", one)
    if isinstance(one, Message | Slot):
        return one
    raise FormatError(
        f"a {type(one).__name__} is nothing to say; give a text or a Message, a whole body to session.run"
    )
