"""Rules of the Messages API about what blocks say: text, thinking, media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.messages.size.image_size import pixels
from holdfast.providers.anthropic.rules.block_kinds import THINKING, paused
from holdfast.providers.anthropic.rules.view import Block, Request
from holdfast.providers.models import FEW_IMAGES, PIXELS, PIXELS_OF_MANY
from holdfast.providers.rules.rule import DOCS, KNOWN, MET, Broken, Rule, quoted, type_name

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


# -- text --------------------------------------------------------------------------------------------------------------


def _text_empty(request: Request) -> Broken:
    """A text block is not empty, in a tool result neither."""
    for block in request.kinds("text"):
        text = block.value.get("text")
        if not isinstance(text, str):
            yield f"{block.path}.text", f"text is {type_name(text)}; send a string"
        elif not text and block.index >= 0:
            yield f"{block.path}.text", "the text block is empty; drop it"


def _text_blank(request: Request) -> Broken:
    """A text is more than white space."""
    for block in request.kinds("text"):
        text = block.value.get("text")
        if isinstance(text, str) and text and text.isspace() and block.inner < 0:
            yield block.path, f"the text is nothing but {len(text)} characters of white space; drop it"


def _trailing(request: Request) -> Broken:
    """A final assistant message does not end in white space."""
    turn = request.turns[-1] if request.turns else None
    last = turn.blocks[-1] if turn is not None and turn.role == "assistant" and turn.blocks else None
    text = last.value.get("text") if last is not None and last.kind == "text" else None
    final = request.last().get("role") == "assistant"
    if final and last is not None and isinstance(text, str) and text != text.rstrip():
        yield last.path, "the final assistant message ends in white space; cut it off"


def _prefill(request: Request) -> Broken:
    """From 4.6 on the conversation ends with a user message."""
    known = request.traits is not None and not request.traits.prefill
    free = paused(request) or request.body.get("compaction") or request.body.get("fallback_credit_token")
    if known and not free and request.last().get("role") == "assistant":
        at = len(request.messages) - 1
        model = request.body.get("model")
        yield f"$.messages[{at}].role", f"{model} takes no prefill; end with a user message"


# -- thinking ----------------------------------------------------------------------------------------------------------


def _signature(request: Request) -> Broken:
    """A thinking block has its text and signature, a redacted one its data."""
    for kind, keys in (("thinking", ("thinking", "signature")), ("redacted_thinking", ("data",))):
        for block in request.kinds(kind):
            for key in keys:
                value = block.value.get(key)
                if not isinstance(value, str) or (not value and key != "thinking"):
                    yield f"{block.path}.{key}", f"{kind} without its {key}; send the block as it came or drop it"


def _final_thinking(request: Request) -> Broken:
    """An assistant turn does not end in thinking."""
    for turn in request.turns:
        if turn.role == "assistant" and turn.blocks and turn.blocks[-1].kind in THINKING:
            yield turn.blocks[-1].path, "the assistant's turn ends in thinking; drop the block"


# -- images and documents ----------------------------------------------------------------------------------------------


def _source(block: Block) -> Mapping[str, Any]:
    source = block.value.get("source")
    return source if isinstance(source, dict) else {}


_SOURCES = {
    "image": {"base64": "data", "url": "url", "file": "file_id"},
    "document": {"base64": "data", "url": "url", "file": "file_id", "text": "data", "content": "content"},
}


def _media_source(request: Request) -> Broken:
    """An image or document has a source of a known type, with something in it."""
    for kind, forms in _SOURCES.items():
        for block in request.kinds(kind):
            source = _source(block)
            key = forms.get(str(source.get("type")))
            if key is None:
                yield (
                    f"{block.path}.source.type",
                    f"source type {quoted(source.get('type'))}; use one of {sorted(forms)}",
                )
            elif not source.get(key):
                yield f"{block.path}.source.{key}", f"the {kind} has no {key}; send it or drop the block"


def _media_type(request: Request) -> Broken:
    """Images are jpeg, png, gif or webp; documents pdf or plain text."""
    for block in request.kinds("image"):
        source = _source(block)
        if source.get("type") == "base64" and source.get("media_type") not in _IMAGES:
            path = f"{block.path}.source.media_type"
            yield path, f"{quoted(source.get('media_type'))} is not one of {', '.join(_IMAGES)}; convert the image"
    for block in request.kinds("document"):
        source = _source(block)
        wanted = {"base64": "application/pdf", "text": "text/plain"}.get(str(source.get("type")))
        if wanted is not None and source.get("media_type") != wanted:
            said = f"{quoted(source.get('media_type'))} where {wanted!r} must be"
            yield f"{block.path}.source.media_type", f"{said}; convert the document"


def _image_count(request: Request) -> Broken:
    """At most 100 images on models with 200,000 tokens, 600 on others."""
    images = request.blocks.get("image", [])
    long_window = request.betas is not None and any(beta.startswith("context-1m") for beta in request.betas)
    most = 100 if request.traits is not None and request.traits.images == 100 and not long_window else 600
    if len(images) > most:
        yield images[most].path, f"{len(images)} images, {most} are allowed; replace the oldest by text"


def _image_size(request: Request) -> Broken:
    """Images have at most 8,000 pixels a side, 2,000 where there are more than 20."""
    images = request.blocks.get("image", [])
    most = PIXELS if len(images) <= FEW_IMAGES else PIXELS_OF_MANY
    for block in images:
        data = _source(block).get("data")
        size = pixels(data) if isinstance(data, str) else None
        if size is not None and max(size) > most:
            yield block.path, f"the image has {size[0]}x{size[1]} pixels, {most} are allowed; scale it down"


RULES: tuple[Rule, ...] = (
    Rule("anthropic.text-nonempty", _text_empty, "observed", MET),
    Rule("anthropic.text-nonblank", _text_blank, "recalled", KNOWN),
    Rule("anthropic.trailing-space", _trailing, "recalled", KNOWN),
    Rule("anthropic.prefill", _prefill, "documented", DOCS, "4.6 and later"),
    Rule("anthropic.thinking-sealed", _signature, "documented", DOCS),
    Rule("anthropic.final-thinking", _final_thinking, "inferred", KNOWN),
    Rule("anthropic.media-source", _media_source, "documented", DOCS),
    Rule("anthropic.media-type", _media_type, "documented", DOCS),
    Rule("anthropic.image-count", _image_count, "documented", DOCS, "100 on models with 200,000 tokens"),
    Rule("anthropic.image-size", _image_size, "documented", DOCS),
)
"""The rules about text, thinking and media."""
