"""One message of opencode: the shapes of what is stored, and its parts as values.

A message is what stands about it (``info``) and a list of parts. The call of a tool and what came of it are one part,
and one message may hold several answers of the model, each begun by a ``step-start``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct

from holdfast.formats.common.lines import LenientDecoder
from holdfast.messages.parts import Media, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import count_base64_bytes, split_data_url
from holdfast.state.entries import Usage

INLINED_MIME_TYPES = frozenset({"text/plain", "application/x-directory"})
"""MIME types of files whose content opencode puts into texts of its own beside them."""
SILENT_PART_TYPES = frozenset(
    {"step-start", "step-finish", "snapshot", "patch", "agent", "retry", "subtask", "compaction"}
)
"""Types of parts that say nothing to the model."""
ENDED_STATUSES = ("completed", "error")
"""How the run of a tool may have ended; else it is pending or running."""
SIGNATURE_FIELDS = {"anthropic": ("anthropic", "signature"), "google": ("gemini", "thoughtSignature")}
"""Where a provider keeps a signature in ``metadata``, by our name of its API."""


class OpencodeTime(Struct, frozen=True):
    """When something was; any may be missing."""

    created: float = 0
    compacted: float | None = None

    @property
    def created_ms(self) -> int:
        """When it was made, in ms since 1970."""
        return to_safe_int(self.created)


class OpencodeCacheTokens(Struct, frozen=True):
    """Tokens that were read from a prompt cache, and written into it."""

    read: float = 0
    write: float = 0


class OpencodeTokens(Struct, frozen=True):
    """What an answer cost; ``input`` is what was neither read from a cache nor written into it."""

    total: float = 0
    input: float = 0
    output: float = 0
    reasoning: float = 0
    cache: OpencodeCacheTokens = OpencodeCacheTokens()


class OpencodeModel(Struct, frozen=True, rename={"provider": "providerID", "model": "modelID"}):
    """The model that a user's message was for."""

    provider: str = ""
    model: str = ""


class OpencodeError(Struct, frozen=True):
    """Why there is no whole answer."""

    name: str = ""


class OpencodeMessageInfo(Struct, rename={"parent": "parentID", "model_id": "modelID", "provider": "providerID"}):
    """What stands about a message; which fields are there depends on the role."""

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
    """How far the run of a tool is, and what came of it."""

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


OPENCODE_INFO, OPENCODE_PART = LenientDecoder(OpencodeMessageInfo), LenientDecoder(OpencodePart)


class _SignatureFields(Struct):
    signature: str | None = None
    thoughtSignature: str | None = None  # noqa: N815 -- as it is written


_SIGNATURE_DECODER = LenientDecoder(_SignatureFields)


def split_answer_steps(pieces: Sequence[OpencodePart]) -> list[list[int]]:
    """Return the places of the parts of each answer in a message; what stands before the first belongs to it."""
    steps: list[list[int]] = [[]]
    for place, piece in enumerate(pieces):
        if piece.type == "step-start" and any(pieces[at].type != "step-start" for at in steps[-1]):
            steps.append([])
        steps[-1].append(place)
    return steps


def decode_opencode_parts(pieces: Iterable[OpencodePart], model: str = "") -> tuple[Part, ...]:
    """Return what was said: words, files, reasoning and calls, as the model is shown them."""
    return tuple([part for piece in pieces if (part := _decode_opencode_part(piece, model)) is not None])


def _decode_opencode_part(piece: OpencodePart, model: str) -> Part | None:
    if piece.type == "text":
        return Text(piece.text) if piece.text and not piece.ignored else None
    if piece.type == "reasoning":
        signature = _decode_opencode_signature(piece, model)
        return Thinking(piece.text, signature) if piece.text or signature is not None else None
    if piece.type == "tool":
        return ToolCall(
            piece.call, piece.tool, bytes(piece.state.input).decode(), _decode_opencode_signature(piece, model)
        )
    return _decode_opencode_file(piece) if piece.type == "file" and piece.mime not in INLINED_MIME_TYPES else None


def _decode_opencode_signature(piece: OpencodePart, model: str) -> ProviderSignature | None:
    """Return the signature that a provider put beside a part."""
    for provider, (api, field) in SIGNATURE_FIELDS.items():
        provider_metadata = _SIGNATURE_DECODER.decode_or_default(piece.metadata.get(provider, Raw(b"{}")))
        if data := getattr(provider_metadata, field):
            return ProviderSignature(api, model if api == "anthropic" else "", data)
    return None


def _decode_opencode_file(piece: OpencodePart) -> Media:
    mime, source = split_data_url(piece.url)
    kind = piece.mime.partition("/")[0]
    kind = kind if kind in ("image", "audio", "video") else "document"
    if mime:
        return Media(kind, piece.mime or mime, count_base64_bytes(source), piece.filename, source, None, "base64")
    is_web = source.startswith(("https://", "http://"))
    return Media(kind, piece.mime, 0, piece.filename, source, None, "url" if is_web else "file")


def decode_tool_result(piece: OpencodePart) -> ToolResult:
    """Return what came of one call, files with it."""
    state = piece.state
    is_error = state.status == "error"
    text = state.error if is_error else state.output or ""
    files = [_decode_opencode_file(OPENCODE_PART.decode_or_default(raw)) for raw in state.attachments]
    return ToolResult(piece.call, piece.tool, (*((Text(text),) if text else ()), *files), is_error)


def decode_opencode_usage(tokens: OpencodeTokens) -> Usage:
    """Return what an answer cost; whether ``output`` holds the reasoning, the total tells."""
    cache_read, cache_write = to_safe_int(tokens.cache.read), to_safe_int(tokens.cache.write)
    output_tokens, thought, total = to_safe_int(tokens.output), to_safe_int(tokens.reasoning), to_safe_int(tokens.total)
    prompt = to_safe_int(tokens.input) + cache_read + cache_write
    output = output_tokens if total == prompt + output_tokens else output_tokens + thought
    return Usage(prompt, output, cache_read, cache_write, thought, 0 if total in (0, prompt + output) else total)


def to_safe_int(number: float) -> int:
    """Return a number of milliseconds or tokens as one that every database takes; 0 for what can be none."""
    return int(number) if 0 <= number < 2**53 else 0
