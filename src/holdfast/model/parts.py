"""The parts a message is made of."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Raw, Struct


class Seal(Struct, frozen=True, omit_defaults=True, gc=False):
    """Opaque state that only its maker may read: a signature, encrypted content, an item id.

    A sealed part goes out byte-identical to the same API and model, or not at all.
    """

    api: str
    model: str
    data: str


class Text(Struct, frozen=True, omit_defaults=True, gc=False, tag="text"):
    """Words, as the user, the model or a tool said them."""

    text: str
    seal: Seal | None = None
    raw: Raw | None = None
    """The part's own JSON as it came over the wire, if it did; neighbours of an edit keep these bytes."""


class Thinking(Struct, frozen=True, omit_defaults=True, gc=False, tag="thinking"):
    """The model's reasoning; ``text`` may be empty while ``seal`` is not."""

    text: str
    seal: Seal | None = None
    raw: Raw | None = None


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False, tag="tool_call"):
    """A request of the model to run tool ``name``; ``arguments`` is JSON text, as it came."""

    id: str
    name: str
    arguments: str = "{}"
    seal: Seal | None = None
    raw: Raw | None = None


class Media(Struct, frozen=True, omit_defaults=True, gc=False, tag="media"):
    """An image, a document or sound: ``source`` is a URL, a file id, or base64 data; ``size`` is in bytes."""

    kind: str
    mime: str
    size: int = 0
    name: str = ""
    source: str = ""
    raw: Raw | None = None


class Opaque(Struct, frozen=True, omit_defaults=True, gc=False, tag="opaque"):
    """A part Holdfast does not interpret: counted and moved, never changed."""

    kind: str
    raw: Raw | None = None
    seal: Seal | None = None


class ToolResult(Struct, frozen=True, omit_defaults=True, gc=False, tag="tool_result"):
    """What tool call ``call_id`` gave back."""

    call_id: str
    name: str = ""
    content: tuple[Text | Media | Opaque, ...] = ()
    is_error: bool = False
    raw: Raw | None = None


Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | Media | Opaque
"""Anything that may stand in ``Message.parts``."""
