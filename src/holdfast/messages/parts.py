"""The parts a message is made of."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from holdfast.errors import raise_if_wrong_type

MediaForm: TypeAlias = Literal["", "base64", "text", "url", "file"]
"""What a source is: bytes in base64, a document's own words, an address, or an id that one provider gave out."""


class ProviderSignature(Struct, frozen=True, omit_defaults=True, gc=False):
    """Opaque state that only its maker may read: a signature, encrypted content, an item id.

    A sealed part goes out byte-identical to the same API and model, or not at all.
    """

    api: str
    model: str
    data: str


class Text(Struct, frozen=True, omit_defaults=True, gc=False, tag="text", rename={"signature": "seal"}):
    """Words, as the user, the model or a tool said them."""

    text: str
    signature: ProviderSignature | None = None
    raw: Raw | None = None
    """The part's own JSON as it came over the wire, if it did; neighbours of an edit keep these bytes."""


class Thinking(Struct, frozen=True, omit_defaults=True, gc=False, tag="thinking", rename={"signature": "seal"}):
    """The model's reasoning; ``text`` may be empty while ``signature`` is not."""

    text: str
    signature: ProviderSignature | None = None
    raw: Raw | None = None


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False, tag="tool_call", rename={"signature": "seal"}):
    """A request of the model to run tool ``name``; ``arguments`` is JSON text, as it came."""

    id: str
    name: str
    arguments: str = "{}"
    signature: ProviderSignature | None = None
    raw: Raw | None = None


class Media(Struct, frozen=True, omit_defaults=True, gc=False, tag="media"):
    """An image, a document or sound: ``form`` tells what ``source`` is; ``size`` is that of what it holds itself."""

    kind: str
    mime: str
    size: int = 0
    name: str = ""
    source: str = ""
    raw: Raw | None = None
    form: MediaForm = ""
    """Never empty once made: logs that were written without it are told by the look of the source."""

    def __post_init__(self) -> None:
        """Tell the form where it was not said; ``TypeError`` for a source and a size that are none."""
        if not (isinstance(self.source, str) and isinstance(self.size, int)):
            raise_if_wrong_type(TypeError, **{"Media.source": (self.source, str), "Media.size": (self.size, int)})
        if not self.form:
            force_setattr(self, "form", _detect_media_form(self))


def _detect_media_form(media: Media) -> MediaForm:
    if media.source.startswith(("https://", "http://")):
        return "url"
    if not media.size:
        return "file"
    is_text = media.mime == "text/plain" and media.size == len(media.source)  # base64 is longer than its bytes
    return "text" if is_text else "base64"


class Opaque(Struct, frozen=True, omit_defaults=True, gc=False, tag="opaque", rename={"signature": "seal"}):
    """A part Holdfast does not interpret: counted and moved, never changed."""

    kind: str
    raw: Raw | None = None
    signature: ProviderSignature | None = None


class ToolResult(Struct, frozen=True, omit_defaults=True, gc=False, tag="tool_result"):
    """What tool call ``call_id`` gave back."""

    call_id: str
    name: str = ""
    content: tuple[Text | Media | Opaque, ...] = ()
    is_error: bool = False
    raw: Raw | None = None


Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | Media | Opaque
"""Anything that may stand in ``Message.parts``."""
