"""One message of opencode: the stored fields, and its parts as values.

A message is ``info`` and a list of parts. A tool call and its result are one part, and one message may hold several
answers of the model, each beginning with a ``step-start``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct

from holdfast.formats.common.lines import LenientDecoder
from holdfast.messages.parts import Media, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import count_base64_bytes, split_data_url
from holdfast.state.entries import Usage

INLINED_MIME_TYPES = frozenset({"text/plain", "application/x-directory"})
"""MIME types of files whose content opencode sends as separate texts, so that the file part itself says nothing."""
SILENT_PART_TYPES = frozenset(
    {"step-start", "step-finish", "snapshot", "patch", "agent", "retry", "subtask", "compaction"}
)
"""Types of parts that are not sent to the model."""
ENDED_STATUSES = ("completed", "error")
"""States of a tool run that has a result; otherwise it is pending or running."""
INTERRUPTED_TEXT = "[Tool execution was interrupted]"
"""opencode's own text for a call without a result."""
SIGNATURE_FIELDS = {"anthropic": ("anthropic", "signature"), "google": ("gemini", "thoughtSignature")}
"""For each provider in ``metadata``, our name of its API and the field that holds a signature."""


class OpencodeTime(Struct, frozen=True):
    """Times in ms since 1970; any may be missing."""

    created: float = 0
    compacted: float | None = None

    @property
    def created_ms(self) -> int:
        """Creation time in ms since 1970, 0 if unknown."""
        return to_safe_int(self.created)


class OpencodeCacheTokens(Struct, frozen=True):
    """Tokens read from and written to the prompt cache."""

    read: float = 0
    write: float = 0


class OpencodeTokens(Struct, frozen=True):
    """Usage of an answer; ``input`` counts only the tokens that the cache had no part in."""

    total: float = 0
    input: float = 0
    output: float = 0
    reasoning: float = 0
    cache: OpencodeCacheTokens = OpencodeCacheTokens()


class OpencodeModel(Struct, frozen=True, rename={"provider": "providerID", "model": "modelID"}):
    """The model that a user's message was sent to."""

    provider: str = ""
    model: str = ""


class OpencodeError(Struct, frozen=True):
    """The error that ended an answer."""

    name: str = ""


class OpencodeMessageInfo(Struct, rename={"parent": "parentID", "model_id": "modelID", "provider": "providerID"}):
    """The fields of a message beside its parts; which are present depends on the role."""

    id: str = ""
    role: str = ""
    time: OpencodeTime = OpencodeTime()
    model: OpencodeModel = OpencodeModel()
    parent: str = ""
    model_id: str = ""
    provider: str = ""
    summary: Raw = Raw()
    tokens: OpencodeTokens = OpencodeTokens()
    finish: str = ""
    error: OpencodeError | None = None
    holdfast: str | None = None


class OpencodeToolState(Struct, frozen=True):
    """State and result of a tool run."""

    status: str = ""
    input: Raw = Raw(b"{}")
    output: str | None = None
    error: str = ""
    time: OpencodeTime = OpencodeTime()
    attachments: list[Raw] = []


class OpencodePart(Struct, rename={"call": "callID", "tail": "tail_start_id"}):
    """The fields of a part of any type."""

    id: str = ""
    type: str = ""
    text: str = ""
    ignored: bool = False
    metadata: dict[str, Raw] = {}
    call: str = ""
    tool: str = ""
    state: OpencodeToolState = OpencodeToolState()
    mime: str = ""
    filename: str = ""
    url: str = ""
    auto: bool = False
    tail: str | None = None
    reason: str = ""
    tokens: OpencodeTokens = OpencodeTokens()


OPENCODE_INFO = LenientDecoder(OpencodeMessageInfo)
OPENCODE_PART = LenientDecoder(OpencodePart)


class _SignatureFields(Struct):
    signature: str | None = None
    thoughtSignature: str | None = None  # noqa: N815 -- as it is written


_SIGNATURE_DECODER = LenientDecoder(_SignatureFields)


def split_answer_steps(pieces: Sequence[OpencodePart]) -> list[list[int]]:
    """Return the indexes of the parts of each answer in a message; parts before the first one belong to it."""
    steps: list[list[int]] = [[]]
    for index, piece in enumerate(pieces):
        # Two starts in a row begin one answer: an answer without content is none.
        has_content = any(pieces[step_index].type != "step-start" for step_index in steps[-1])
        if piece.type == "step-start" and has_content:
            steps.append([])
        steps[-1].append(index)
    return steps


def decode_opencode_parts(pieces: Iterable[OpencodePart], model: str = "") -> tuple[Part, ...]:
    """Return the parts that were sent to the model: texts, files, reasoning and calls.

    ``model`` is the one that signed reasoning and calls.
    """
    parts = [_decode_opencode_part(piece, model) for piece in pieces]
    return tuple([part for part in parts if part is not None])


def _decode_opencode_part(piece: OpencodePart, model: str) -> Part | None:
    """Return the value of a part, or None if it says nothing to the model."""
    if piece.type == "text":
        if piece.ignored or not piece.text:
            return None
        return Text(piece.text)
    if piece.type == "reasoning":
        signature = _decode_opencode_signature(piece, model)
        if not piece.text and signature is None:
            return None
        return Thinking(piece.text, signature)
    if piece.type == "tool":
        arguments = bytes(piece.state.input).decode()
        return ToolCall(piece.call, piece.tool, arguments, _decode_opencode_signature(piece, model))
    if piece.type == "file" and piece.mime not in INLINED_MIME_TYPES:
        return _decode_opencode_file(piece)
    return None


def _decode_opencode_signature(piece: OpencodePart, model: str) -> ProviderSignature | None:
    """Return the signature in a part's provider metadata, or None."""
    for provider, (api, field) in SIGNATURE_FIELDS.items():
        provider_metadata = _SIGNATURE_DECODER.decode_or_default(piece.metadata.get(provider, Raw(b"{}")))
        data = getattr(provider_metadata, field)
        if data:
            # Only Anthropic's signatures are bound to the model.
            return ProviderSignature(api, model if api == "anthropic" else "", data)
    return None


def _decode_opencode_file(piece: OpencodePart) -> Media:
    data_mime, source = split_data_url(piece.url)
    kind = piece.mime.partition("/")[0]
    if kind not in ("image", "audio", "video"):
        kind = "document"
    if data_mime:
        mime = piece.mime or data_mime
        return Media(kind, mime, count_base64_bytes(source), piece.filename, source, None, "base64")
    is_web = source.startswith(("https://", "http://"))
    return Media(kind, piece.mime, 0, piece.filename, source, None, "url" if is_web else "file")


def decode_tool_result(piece: OpencodePart) -> ToolResult:
    """Return the result of a tool part, with its files.

    A run that never ended was interrupted: opencode ended meanwhile, and tells its model the same of such a call
    (opencode#10616, #19023, #27871).
    """
    state = piece.state
    if state.status not in ENDED_STATUSES:
        return ToolResult(piece.call, piece.tool, (Text(INTERRUPTED_TEXT),), is_error=True)
    is_error = state.status == "error"
    text = state.error if is_error else state.output or ""
    content: list[Text | Media] = []
    if text:
        content.append(Text(text))
    content += [_decode_opencode_file(OPENCODE_PART.decode_or_default(raw)) for raw in state.attachments]
    return ToolResult(piece.call, piece.tool, tuple(content), is_error)


def decode_opencode_usage(tokens: OpencodeTokens) -> Usage:
    """Return the usage of an answer.

    Some answers count the reasoning in ``output`` and some do not. The total decides: if input and output add up to
    it, the reasoning is included.
    """
    cache_read = to_safe_int(tokens.cache.read)
    cache_write = to_safe_int(tokens.cache.write)
    reasoning = to_safe_int(tokens.reasoning)
    total = to_safe_int(tokens.total)
    prompt = to_safe_int(tokens.input) + cache_read + cache_write
    output = to_safe_int(tokens.output)
    if total != prompt + output:
        output += reasoning
    extra_total = 0 if total in (0, prompt + output) else total
    return Usage(prompt, output, cache_read, cache_write, reasoning, extra_total)


def to_safe_int(number: float) -> int:
    """Return a number of ms or tokens as an integer, or 0 if it is negative, not a number, or larger than JavaScript
    counts.
    """
    return int(number) if 0 <= number < 2**53 else 0
