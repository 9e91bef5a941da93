"""Rules of the Messages API about the content of blocks: text, thinking, media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.messages.size.image_size import read_image_size
from holdfast.messages.size.pdf_pages import count_pdf_pages
from holdfast.messages.text.counts import format_count
from holdfast.providers.anthropic.models import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_IMAGES_SHORT_WINDOW,
    MAX_LARGE_IMAGES,
    MAX_PIXELS_FEW_IMAGES,
    MAX_PIXELS_MANY_IMAGES,
    is_cloud_model,
    is_strict_version,
)
from holdfast.providers.anthropic.rules.block_kinds import THINKING_BLOCK_KINDS, is_paused_turn
from holdfast.providers.anthropic.rules.request_view import AnthropicView, BlockView
from holdfast.providers.common.media_faults import COMMON_IMAGE_TYPES, explain_media_fault
from holdfast.providers.rules.rule import (
    ANTHROPIC_DOCS,
    PUBLIC_ERRORS,
    UNVERIFIED_MEMORY,
    Rule,
    Violations,
    format_json_value,
    get_json_type_name,
)

_PDF_SOURCE = "release notes of 2026-03-13; 'A maximum of 100 PDF pages may be provided': claude-code#6231, warp#8114"
_VERSION_SOURCE = "page on migrating to API version 2026-10-21"

# -- text --------------------------------------------------------------------------------------------------------------


def _check_empty_text(request: AnthropicView) -> Violations:
    """A text block is not empty, also inside a tool result."""
    for block in request.iter_blocks("text"):
        text = block.value.get("text")
        if not isinstance(text, str):
            yield f"{block.path}.text", f"text is {get_json_type_name(text)}; send a string"
        elif not text and block.block_index >= 0:
            yield f"{block.path}.text", "the text block is empty; drop it"


def _check_blank_text(request: AnthropicView) -> Violations:
    """A text block has more than white space."""
    for block in request.iter_blocks("text"):
        text = block.value.get("text")
        if isinstance(text, str) and text and text.isspace() and block.inner_index < 0:
            characters = format_count(len(text), "character")
            yield block.path, f"the text block has only white space ({characters}); drop it"


def _check_trailing_space(request: AnthropicView) -> Violations:
    """A final assistant message does not end in white space."""
    if request.get_last_message().get("role") != "assistant" or not request.turns:
        return
    turn = request.turns[-1]
    if turn.role == "assistant" and turn.blocks:
        last_block = turn.blocks[-1]
    else:
        last_block = None
    if last_block is None or last_block.kind != "text":
        return
    text = last_block.value.get("text")
    if isinstance(text, str) and text != text.rstrip():
        yield last_block.path, "the final assistant message ends in white space; strip it"


def _check_prefill(request: AnthropicView) -> Violations:
    """The conversation ends with a user message: no prefill."""
    if request.claude_traits is None or request.claude_traits.allows_prefill:
        return
    # These requests end with the assistant by design.
    is_compaction = request.body.get("compaction")
    is_fallback = request.body.get("fallback_credit_token")
    if is_paused_turn(request) or is_compaction or is_fallback:
        return
    if request.get_last_message().get("role") == "assistant":
        at = len(request.messages) - 1
        model = request.body.get("model")
        yield f"$.messages[{at}].role", f"{model} takes no prefill; end with a user message"


# -- thinking ----------------------------------------------------------------------------------------------------------


def _check_thinking_signed(request: AnthropicView) -> Violations:
    """A thinking block has a text and a signature, a redacted_thinking block has data."""
    for kind, keys in (("thinking", ("thinking", "signature")), ("redacted_thinking", ("data",))):
        for block in request.iter_blocks(kind):
            for key in keys:
                value = block.value.get(key)
                may_be_empty = key == "thinking"  # the text is empty where its display is omitted
                if not isinstance(value, str) or (not value and not may_be_empty):
                    yield (
                        f"{block.path}.{key}",
                        f"the {kind} block has no {key}; send the block as the model returned it, or drop it",
                    )


def _check_final_thinking(request: AnthropicView) -> Violations:
    """An assistant turn does not end with thinking."""
    for turn in request.turns:
        if turn.role == "assistant" and turn.blocks and turn.blocks[-1].kind in THINKING_BLOCK_KINDS:
            yield turn.blocks[-1].path, "the assistant turn ends with a thinking block; drop it"


# -- images and documents ----------------------------------------------------------------------------------------------


def _get_media_source(block: BlockView) -> Mapping[str, Any]:
    source = block.value.get("source")
    return source if isinstance(source, dict) else {}


_SOURCE_FIELDS = {
    "image": {"base64": "data", "url": "url", "file": "file_id"},
    "document": {"base64": "data", "url": "url", "file": "file_id", "text": "data", "content": "content"},
}


def _check_media_source(request: AnthropicView) -> Violations:
    """An image or document has a source of a known type that is not empty."""
    for kind, forms in _SOURCE_FIELDS.items():
        for block in request.iter_blocks(kind):
            source = _get_media_source(block)
            source_type = source.get("type")
            key = forms.get(str(source_type))
            if key is None:
                problem = f"source type {format_json_value(source_type)}; use one of {sorted(forms)}"
                yield f"{block.path}.source.type", problem
            elif not source.get(key):
                yield f"{block.path}.source.{key}", f"the {kind} has no {key}; send it or drop the block"


def _check_media_type(request: AnthropicView) -> Violations:
    """Images are JPEG, PNG, GIF or WebP, and documents are PDF or plain text."""
    for block in request.iter_blocks("image"):
        source = _get_media_source(block)
        mime = source.get("media_type")
        if source.get("type") == "base64" and mime not in COMMON_IMAGE_TYPES:
            problem = f"{format_json_value(mime)} is not one of {', '.join(COMMON_IMAGE_TYPES)}; convert the image"
            yield f"{block.path}.source.media_type", problem
    for block in request.iter_blocks("document"):
        source = _get_media_source(block)
        mime = source.get("media_type")
        expected_mime = {"base64": "application/pdf", "text": "text/plain"}.get(str(source.get("type")))
        if expected_mime is not None and mime != expected_mime:
            problem = f"media_type is {format_json_value(mime)}, but must be {expected_mime!r}"
            yield f"{block.path}.source.media_type", f"{problem}; convert the document"


def _check_media_bytes(request: AnthropicView) -> Violations:
    """The bytes of an image or a PDF are of the declared type, and their base64 is complete."""
    for block in request.iter_blocks("image", "document"):
        source = _get_media_source(block)
        data, mime = source.get("data"), source.get("media_type")
        # An empty or missing field is named by the rules above.
        if source.get("type") != "base64" or not isinstance(mime, str) or not isinstance(data, str) or not data:
            continue
        fault = explain_media_fault(data, mime, COMMON_IMAGE_TYPES)
        if fault is not None:
            yield f"{block.path}.source.data", fault


def _check_version_documents(request: AnthropicView) -> Violations:
    """From version 2026-10-21 on, an assistant message has no document beside those in its tool results."""
    if not is_strict_version(request.version):
        return
    for block in request.iter_blocks("document"):
        if block.role == "assistant" and block.inner_index < 0:
            problem = f"anthropic-version {request.version} takes no document in an assistant message"
            yield block.path, f"{problem}; move it to a user message"


def _check_version_citations(request: AnthropicView) -> Violations:
    """From version 2026-10-21 on, the text of a user has no citations, also in a search result."""
    if not is_strict_version(request.version):
        return
    problem = f"anthropic-version {request.version} takes no citations on the text of a user; leave them out"
    for block in request.iter_blocks("text"):
        if block.role == "user" and block.value.get("citations"):
            yield f"{block.path}.citations", problem
    for block in request.iter_blocks("search_result"):
        content = block.value.get("content")
        for index, inner in enumerate(content if isinstance(content, list) else ()):
            if isinstance(inner, dict) and inner.get("type") == "text" and inner.get("citations"):
                yield f"{block.path}.content[{index}].citations", problem


def _get_max_images(request: AnthropicView) -> int:
    """Return how many images, and how many pages of PDFs, the request may have: 100 with a window of 200,000 tokens."""
    if request.claude_traits is None or request.claude_traits.max_images > MAX_IMAGES_SHORT_WINDOW:
        return MAX_IMAGES
    # The beta for one million tokens ended on April 30, 2026 (release notes); the clouds have days of their own.
    is_cloud = is_cloud_model(request.model) or request.body.get("anthropic_version") is not None
    has_long_window = any(beta.startswith("context-1m") for beta in request.betas or ())
    return MAX_IMAGES if is_cloud and has_long_window else MAX_IMAGES_SHORT_WINDOW


def _check_image_count(request: AnthropicView) -> Violations:
    """There are at most 100 images for models with 200,000 tokens, 600 for others."""
    images = request.blocks.get("image", [])
    max_images = _get_max_images(request)
    if len(images) > max_images:
        yield images[max_images].path, f"{len(images)} images, but {max_images} are allowed; replace the oldest by text"


def _check_pdf_pages(request: AnthropicView) -> Violations:
    """PDFs have at most 100 pages together for models with 200,000 tokens, 600 for others."""
    pages_by_block: list[tuple[BlockView, int]] = []
    for block in request.iter_blocks("document"):
        source = _get_media_source(block)
        data = source.get("data")
        if source.get("type") == "base64" and isinstance(data, str) and data:
            pages_by_block.append((block, count_pdf_pages(data)))
    max_pages = _get_max_images(request)
    total = sum(pages for _, pages in pages_by_block)
    if total <= max_pages:
        return
    # One document that is too long by itself is the one to replace, else the oldest.
    too_long = [block for block, pages in pages_by_block if pages > max_pages]
    block = too_long[0] if too_long else next(block for block, pages in pages_by_block if pages)
    yield block.path, f"PDFs of {total} pages, but {max_pages} are allowed; replace this document by text"


def _check_image_size(request: AnthropicView) -> Violations:
    """Images have at most 8,000 pixels a side, 2,000 if there are more than 20 images."""
    images = request.blocks.get("image", [])
    if len(images) <= MAX_LARGE_IMAGES:
        max_pixels = MAX_PIXELS_FEW_IMAGES
    else:
        max_pixels = MAX_PIXELS_MANY_IMAGES
    for block in images:
        data = _get_media_source(block).get("data")
        size = read_image_size(data) if isinstance(data, str) else None
        if size is not None and max(size) > max_pixels:
            yield (
                block.path,
                f"the image has {size[0]}x{size[1]} pixels, but {max_pixels} a side are allowed; scale it down",
            )


def _check_image_bytes(request: AnthropicView) -> Violations:
    """The base64 of an image has at most 10 MB (5 MB on Bedrock and Google Cloud)."""
    for block in request.blocks.get("image", []):
        data = _get_media_source(block).get("data")
        if isinstance(data, str) and len(data) > MAX_IMAGE_BYTES:
            problem = f"the image has {len(data):,} bytes of base64, but {MAX_IMAGE_BYTES:,} are allowed"
            yield block.path, f"{problem}; scale it down"


BLOCK_RULES: tuple[Rule, ...] = (
    Rule("anthropic.text-nonempty", _check_empty_text, "observed", PUBLIC_ERRORS),
    Rule("anthropic.text-nonblank", _check_blank_text, "recalled", UNVERIFIED_MEMORY),
    Rule("anthropic.trailing-space", _check_trailing_space, "recalled", UNVERIFIED_MEMORY),
    Rule(
        "anthropic.prefill",
        _check_prefill,
        "documented",
        ANTHROPIC_DOCS,
        "4.6 and later",
    ),
    Rule("anthropic.thinking-sealed", _check_thinking_signed, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.final-thinking", _check_final_thinking, "inferred", UNVERIFIED_MEMORY),
    Rule("anthropic.media-source", _check_media_source, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.media-type", _check_media_type, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.media-bytes", _check_media_bytes, "observed", PUBLIC_ERRORS),
    Rule("anthropic.version-document", _check_version_documents, "documented", _VERSION_SOURCE, "version 2026-10-21"),
    Rule("anthropic.version-citations", _check_version_citations, "documented", _VERSION_SOURCE, "version 2026-10-21"),
    Rule(
        "anthropic.image-count",
        _check_image_count,
        "documented",
        ANTHROPIC_DOCS,
        "100 on models with 200,000 tokens",
    ),
    Rule("anthropic.pdf-pages", _check_pdf_pages, "observed", _PDF_SOURCE, "100 on models with 200,000 tokens"),
    Rule("anthropic.image-size", _check_image_size, "documented", ANTHROPIC_DOCS),
    Rule("anthropic.image-bytes", _check_image_bytes, "documented", ANTHROPIC_DOCS),
)
"""The rules about text, thinking and media."""
