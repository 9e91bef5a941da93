"""One message of opencode: the shapes of what is stored, and its parts as values.

A message is what stands about it (``info``) and a list of parts. The call of a tool and what came of it are one part,
and one message may hold several answers of the model, each begun by a ``step-start``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct

from holdfast.formats.common.lines import Shape
from holdfast.messages.parts import Media, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.providers.common.json.raw_json import decoded_size, unpacked_url
from holdfast.state.entries import Usage

TOLD_IN_WORDS = frozenset({"text/plain", "application/x-directory"})
"""MIME types of files whose content opencode puts into texts of its own beside them."""
SILENT = frozenset({"step-start", "step-finish", "snapshot", "patch", "agent", "retry", "subtask", "compaction"})
"""Types of parts that say nothing to the model."""
ENDED = ("completed", "error")
"""How the run of a tool may have ended; else it is pending or running."""
SEALS = {"anthropic": ("anthropic", "signature"), "google": ("gemini", "thoughtSignature")}
"""Where a provider keeps a signature in ``metadata``, by our name of its API."""


class Time(Struct, frozen=True):
    """When something was; any may be missing."""

    created: float = 0
    compacted: float | None = None

    @property
    def at(self) -> int:
        """When it was made, in ms since 1970."""
        return whole(self.created)


class Cache(Struct, frozen=True):
    """Tokens that were read from a prompt cache, and written into it."""

    read: float = 0
    write: float = 0


class Tokens(Struct, frozen=True):
    """What an answer cost; ``input`` is what was neither read from a cache nor written into it."""

    total: float = 0
    input: float = 0
    output: float = 0
    reasoning: float = 0
    cache: Cache = Cache()


class Model(Struct, frozen=True, rename={"provider": "providerID", "model": "modelID"}):
    """The model that a user's message was for."""

    provider: str = ""
    model: str = ""


class Failure(Struct, frozen=True):
    """Why there is no whole answer."""

    name: str = ""


class Info(Struct, rename={"parent": "parentID", "model_id": "modelID", "provider": "providerID"}):
    """What stands about a message; which fields are there depends on the role."""

    id: str = ""
    role: str = ""
    time: Time = Time()
    model: Model = Model()
    parent: str = ""
    model_id: str = ""
    provider: str = ""
    summary: Raw = Raw()
    tokens: Tokens = Tokens()
    finish: str = ""
    error: Failure | None = None
    holdfast: str | None = None


class State(Struct, frozen=True):
    """How far the run of a tool is, and what came of it."""

    status: str = ""
    input: Raw = Raw(b"{}")
    output: str | None = None
    error: str = ""
    time: Time = Time()
    attachments: list[Raw] = []


class Piece(Struct, rename={"call": "callID", "tail": "tail_start_id"}):
    """The fields of a part of any type."""

    id: str = ""
    type: str = ""
    text: str = ""
    ignored: bool = False
    metadata: dict[str, Raw] = {}
    call: str = ""
    tool: str = ""
    state: State = State()
    mime: str = ""
    filename: str = ""
    url: str = ""
    auto: bool = False
    tail: str | None = None
    reason: str = ""
    tokens: Tokens = Tokens()


INFO, PIECE = Shape(Info), Shape(Piece)


class _Signed(Struct):
    signature: str | None = None
    thoughtSignature: str | None = None  # noqa: N815 -- as it is written


_SIGNED = Shape(_Signed)


def steps_of(pieces: Sequence[Piece]) -> list[list[int]]:
    """Return the places of the parts of each answer in a message; what stands before the first belongs to it."""
    steps: list[list[int]] = [[]]
    for place, piece in enumerate(pieces):
        if piece.type == "step-start" and any(pieces[at].type != "step-start" for at in steps[-1]):
            steps.append([])
        steps[-1].append(place)
    return steps


def spoken(pieces: Iterable[Piece], model: str = "") -> tuple[Part, ...]:
    """Return what was said: words, files, reasoning and calls, as the model is shown them."""
    return tuple([part for piece in pieces if (part := _part(piece, model)) is not None])


def _part(piece: Piece, model: str) -> Part | None:
    if piece.type == "text":
        return Text(piece.text) if piece.text and not piece.ignored else None
    if piece.type == "reasoning":
        seal = _seal(piece, model)
        return Thinking(piece.text, seal) if piece.text or seal is not None else None
    if piece.type == "tool":
        return ToolCall(piece.call, piece.tool, bytes(piece.state.input).decode(), _seal(piece, model))
    return _media(piece) if piece.type == "file" and piece.mime not in TOLD_IN_WORDS else None


def _seal(piece: Piece, model: str) -> Seal | None:
    """Return the signature that a provider put beside a part."""
    for provider, (api, field) in SEALS.items():
        told = _SIGNED.of(piece.metadata.get(provider, Raw(b"{}")))
        if data := getattr(told, field):
            return Seal(api, model if api == "anthropic" else "", data)
    return None


def _media(piece: Piece) -> Media:
    mime, source = unpacked_url(piece.url)
    kind = piece.mime.partition("/")[0]
    kind = kind if kind in ("image", "audio", "video") else "document"
    if mime:
        return Media(kind, piece.mime or mime, decoded_size(source), piece.filename, source, None, "base64")
    is_web = source.startswith(("https://", "http://"))
    return Media(kind, piece.mime, 0, piece.filename, source, None, "url" if is_web else "file")


def result_of(piece: Piece) -> ToolResult:
    """Return what came of one call, files with it."""
    state = piece.state
    failed = state.status == "error"
    text = state.error if failed else state.output or ""
    files = [_media(PIECE.of(raw)) for raw in state.attachments]
    return ToolResult(piece.call, piece.tool, (*((Text(text),) if text else ()), *files), failed)


def usage_of(tokens: Tokens) -> Usage:
    """Return what an answer cost; whether ``output`` holds the reasoning, the total tells."""
    read, written = whole(tokens.cache.read), whole(tokens.cache.write)
    made, thought, total = whole(tokens.output), whole(tokens.reasoning), whole(tokens.total)
    prompt = whole(tokens.input) + read + written
    output = made if total == prompt + made else made + thought
    return Usage(prompt, output, read, written, thought, 0 if total in (0, prompt + output) else total)


def whole(number: float) -> int:
    """Return a number of milliseconds or tokens as one that every database takes; 0 for what can be none."""
    return int(number) if 0 <= number < 2**53 else 0
