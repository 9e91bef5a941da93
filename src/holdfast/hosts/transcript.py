"""The transcript that a coding agent's plugin hands over, as JSON and as our messages.

It is what Claude Code gives a hook of ``session.compact``: text, tool calls and results, and a handle by which the host
knows each message. Thinking and pictures are not in it; a message that is handed back with its handle keeps them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from holdfast.errors import FormatError
from holdfast.messages.message import Message, Role
from holdfast.messages.parts import Part, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure_messages
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.text_cuts import replace_surrogates_in_text
from holdfast.planning.extract.previous_summary import is_extract
from holdfast.planning.open_work.section import OPEN_WORK_HEADING
from holdfast.state.codec.reading import get_decoder

_OPEN_WORK_LINE = re.compile(rf"^{re.escape(OPEN_WORK_HEADING)}$", re.MULTILINE)
_ERROR_PATH = re.compile(r" - at `\$([^`]*)`$")
"""What msgspec adds to an error: where in the document it is."""
MAX_WINDOW = 100_000_000
"""Tokens that a window, or anything in it, may have. More than any model has, and few enough for exact arithmetic."""


EnvelopeT = TypeVar("EnvelopeT", bound=Struct)
"""The object around the messages, which differs between those who ask."""


class TranscriptError(FormatError):
    """The input is no transcript that can be compacted; ``path`` says where in the document."""

    def __init__(self, path: str, why: str, advice: str) -> None:
        super().__init__(f"{path}: {why}; {advice}")
        self.path = path
        self.why = why
        self.advice = advice


class _TranscriptCall(Struct, frozen=True):
    """A tool call of an assistant's message."""

    tool_use_id: str
    tool: str
    input: Raw = Raw(b"{}")


class _TranscriptResult(Struct, frozen=True, rename={"is_error": "isError"}):
    """A tool result in a user's message."""

    tool_use_id: str
    text: str = ""
    is_error: bool = False


class AnswerUsage(Struct, frozen=True, rename="camel"):
    """Tokens of the request that an answer came to, as its provider reported them."""

    input: Annotated[int, Meta(ge=0, le=MAX_WINDOW)] = 0
    """Tokens of the prompt that were not in the provider's cache."""
    output: Annotated[int, Meta(ge=0, le=MAX_WINDOW)] = 0
    cache_read: Annotated[int, Meta(ge=0, le=MAX_WINDOW)] = 0
    cache_write: Annotated[int, Meta(ge=0, le=MAX_WINDOW)] = 0


class _TranscriptMessage(
    Struct,
    frozen=True,
    rename={"calls": "toolUses", "results": "toolResults", "hidden_tokens": "hiddenTokens"},
):
    """A message. Unknown fields are a newer host's; they are left alone."""

    role: str
    text: str = ""
    calls: list[_TranscriptCall] = []
    results: list[_TranscriptResult] = []
    handle: str | None = None
    hidden_tokens: Annotated[int, Meta(ge=0, le=MAX_WINDOW)] = 0
    usage: AnswerUsage | None = None


class _Envelope(Struct, frozen=True, rename={"is_recorded": "isRecorded"}):
    messages: list[Raw]
    window: int | None = None
    model: str | None = None
    trigger: str = ""
    instructions: str | None = None
    is_recorded: bool = False


class TranscriptMessage(Struct, frozen=True):
    """One message of a transcript."""

    message: Message
    """The message as the planner reads it."""
    handle: str | None = None
    """The host's name for the message."""
    hidden_tokens: int = 0
    """Tokens of what the host's message holds beside this: thinking, pictures."""
    usage: AnswerUsage | None = None
    """For an answer: what its request took, if the host says it."""


class Transcript(Struct, frozen=True):
    """A transcript to be compacted."""

    messages: tuple[SizedMessage, ...]
    """The messages as the planner reads them, one for each that came."""
    raw_messages: tuple[Raw, ...]
    """The same messages as they came, byte for byte."""
    window: int | None = None
    """The window of the model in tokens, if the host says it."""
    model: str = ""
    """The model whose prices the host wants to know."""
    instructions: str = ""
    """What the user wrote after ``/compact``."""
    is_recorded: bool = False
    """Whether the session is in the store, so that recall can read back what is left out."""


def read_transcript(data: bytes) -> Transcript:
    """Read ``{"messages": […], "window"?, "model"?, "trigger"?, "instructions"?, "isRecorded"?}``.

    Raises ``TranscriptError`` if ``data`` is anything else, or holds no message.
    """
    envelope = decode_envelope(data, _Envelope)
    check_messages_and_window(envelope.messages, envelope.window)
    messages = [read_message(raw, f"messages[{index}]") for index, raw in enumerate(envelope.messages)]
    return Transcript(
        tuple(measure_transcript_messages(messages)),
        tuple(envelope.messages),
        envelope.window,
        envelope.model or "",
        (envelope.instructions or "").strip(),
        envelope.is_recorded,
    )


def check_messages_and_window(messages: Sequence[Raw], window: int | None) -> None:
    """Raise ``TranscriptError`` if there is no message, or if the window is no number of tokens that exists."""
    if not messages:
        raise TranscriptError("messages", "there are 0 messages", "give the messages of the conversation, oldest first")
    if window is not None and not 0 < window <= MAX_WINDOW:
        raise TranscriptError(
            "window",
            f"{window} is not from 1 to {MAX_WINDOW:,}",
            "give the window of the model in tokens, or leave it out",
        )


def decode_envelope(data: bytes, envelope_type: type[EnvelopeT]) -> EnvelopeT:
    """Decode one JSON object of ``envelope_type``; raise ``TranscriptError`` if ``data`` is anything else."""
    decoder = get_decoder(envelope_type)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _describe_wrong_type(error, "") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # Only now, because it is slow: half a character (JavaScript cuts texts there) is valid JSON that msgspec refuses.
    try:
        return decoder.decode(_replace_half_characters(data))
    except msgspec.ValidationError as error:
        raise _describe_wrong_type(error, "") from None
    except (ValueError, RecursionError) as error:
        size = f"{len(data):,} bytes"
        raise TranscriptError("$", f"{size} that are not JSON: {error}", "give one JSON object") from None


def _replace_half_characters(data: bytes) -> bytes:
    """Write a JSON document anew with U+FFFD in place of each half of a surrogate pair."""
    value = json.loads(data.decode("utf-8-sig", "surrogatepass"))
    return replace_surrogates_in_text(json.dumps(value, ensure_ascii=False)).encode()


def read_message(raw: Raw, path: str) -> TranscriptMessage:
    """Read one message; ``path`` says where it is in the document, for the ``TranscriptError`` if it is none."""
    try:
        # What the envelope's decoder only skipped was not looked at: the message, and in it the input of each call.
        bytes(raw).decode()
        message = get_decoder(_TranscriptMessage).decode(raw)
    except msgspec.ValidationError as error:
        raise _describe_wrong_type(error, path) from None
    except UnicodeDecodeError as error:
        raise TranscriptError(path, f"it is not UTF-8 text: {error.reason}", "send JSON in UTF-8") from None
    parts: list[Part] = []
    for result in message.results:
        parts.append(ToolResult(result.tool_use_id, "", (Text(result.text),), result.is_error))
    if message.text:
        parts += _split_text(message.text)
    for call in message.calls:
        parts.append(ToolCall(call.tool_use_id, call.tool, bytes(call.input).decode()))
    return TranscriptMessage(
        Message(_get_role(message, path), tuple(parts)), message.handle, message.hidden_tokens, message.usage
    )


def measure_transcript_messages(messages: Sequence[TranscriptMessage]) -> list[SizedMessage]:
    """Return ``messages`` with their sizes, in which what the host alone sees is counted too."""
    sizes = measure_messages([message.message for message in messages])
    sized_messages: list[SizedMessage] = []
    for message, (tokens, digest) in zip(messages, sizes, strict=True):
        sized_messages.append(SizedMessage(message.message, tokens + message.hidden_tokens, digest))
    return sized_messages


def _get_role(message: _TranscriptMessage, path: str) -> Role:
    if message.role == "assistant":
        if message.results:
            why = f"an assistant's message has {format_count(len(message.results), 'result')}"
            raise TranscriptError(f"{path}.toolResults", why, "give results in messages of the role user")
        return "assistant"
    if message.role != "user":
        raise TranscriptError(f"{path}.role", f"{message.role[:80]!r} is no role", 'give "user" or "assistant"')
    if message.calls:
        why = f"a user's message has {format_count(len(message.calls), 'call')}"
        raise TranscriptError(f"{path}.toolUses", why, "give calls in messages of the role assistant")
    return "tool" if message.results and not message.text else "user"


def _split_text(text: str) -> Sequence[Text]:
    """Return the text parts of a message.

    An extract of ours is handed to the host as one text. When it comes back, the list of open work at its end is a text
    of its own again, as the extract was made.
    """
    if is_extract(text):
        lines = list(_OPEN_WORK_LINE.finditer(text))
        if lines:
            start = lines[-1].start()
            return Text(text[:start].rstrip("\n")), Text(text[start:])
    return (Text(text),)


def _describe_wrong_type(error: msgspec.ValidationError, prefix: str) -> TranscriptError:
    """Return the error that names the place in the document that msgspec found."""
    message = str(error)
    found = _ERROR_PATH.search(message)
    path = f"{prefix}{found[1] if found else ''}".removeprefix(".") or "$"
    why = _ERROR_PATH.sub("", message)
    return TranscriptError(path, f"{why[:1].lower()}{why[1:]}", "give a value of that type")
