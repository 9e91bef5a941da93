"""The parts that a message is made of."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import force_setattr, replace

from holdfast.errors import raise_if_wrong_type

MediaForm: TypeAlias = Literal["", "base64", "text", "url", "file"]
"""What ``Media.source`` contains: base64 data, the text of a document, a URL, or a file id of one provider."""


class ProviderSignature(Struct, frozen=True, omit_defaults=True, gc=False):
    """Opaque state that only its maker can read: a thinking signature, encrypted content, an item id.

    A signed part is sent byte-identical to the API and model that signed it, or not at all.
    """

    api: str
    model: str
    data: str


class Text(Struct, frozen=True, omit_defaults=True, gc=False, tag="text", rename={"signature": "seal"}):
    """Text that the user, the model or a tool wrote."""

    text: str
    signature: ProviderSignature | None = None
    raw: Raw | None = None
    """The part's own JSON as received over the wire, if it did. It is sent again as it is when only other parts of the
    message are edited."""


class Thinking(Struct, frozen=True, omit_defaults=True, gc=False, tag="thinking", rename={"signature": "seal"}):
    """The model's reasoning; ``text`` may be empty while ``signature`` is not."""

    text: str
    signature: ProviderSignature | None = None
    raw: Raw | None = None


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False, tag="tool_call", rename={"signature": "seal"}):
    """A request of the model to run tool ``name``; ``arguments`` is JSON text as received."""

    id: str
    name: str
    arguments: str = "{}"
    signature: ProviderSignature | None = None
    raw: Raw | None = None


class Media(Struct, frozen=True, omit_defaults=True, gc=False, tag="media"):
    """An image, a document or sound. ``size`` counts the bytes in ``source`` itself, 0 for a reference."""

    kind: str
    mime: str
    size: int = 0
    name: str = ""
    source: str = ""
    raw: Raw | None = None
    form: MediaForm = ""
    """How ``source`` is to be read. Logs written before this field existed leave it empty; it is then derived."""

    def __post_init__(self) -> None:
        """Derive a missing form. Raises ``TypeError`` for a source or a size of another type."""
        if not (isinstance(self.source, str) and isinstance(self.size, int)):
            expected_types = {"Media.source": (self.source, str), "Media.size": (self.size, int)}
            raise_if_wrong_type(TypeError, **expected_types)
        if not self.form:
            force_setattr(self, "form", _detect_media_form(self))


def _detect_media_form(media: Media) -> MediaForm:
    if media.source.startswith(("https://", "http://")):
        return "url"
    if not media.size:
        return "file"
    # Base64 of a text is longer than the text, so equal lengths mean the text itself.
    is_text = media.mime == "text/plain" and media.size == len(media.source)
    return "text" if is_text else "base64"


class Opaque(Struct, frozen=True, omit_defaults=True, gc=False, tag="opaque", rename={"signature": "seal"}):
    """A part that Holdfast does not interpret: it is counted and moved, never changed."""

    kind: str
    raw: Raw | None = None
    signature: ProviderSignature | None = None

    def __hash__(self) -> int:
        """Hash the bytes of ``raw``: ``Raw`` compares them, but has no hash of its own."""
        return hash((self.kind, None if self.raw is None else bytes(self.raw), self.signature))


class ToolResult(Struct, frozen=True, omit_defaults=True, gc=False, tag="tool_result"):
    """The result of tool call ``call_id``."""

    call_id: str
    name: str = ""
    content: tuple[Text | Media | Opaque, ...] = ()
    is_error: bool = False
    raw: Raw | None = None


Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | Media | Opaque
"""Anything that can be in ``Message.parts``."""


def strip_wire_bytes(part: Part) -> Part:
    """Return ``part`` without its wire bytes, which repeat its fields; an opaque part consists of them."""
    if isinstance(part, Opaque):
        return part
    if isinstance(part, ToolResult):
        content = []
        for inner in part.content:
            content.append(inner if isinstance(inner, Opaque) else replace(inner, raw=None))
        return replace(part, content=tuple(content), raw=None)
    return replace(part, raw=None)
