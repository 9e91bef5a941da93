"""Scale down the images in a request body that are larger than the API takes, where Pillow is installed.

This comes before the history is normalized, which would replace the oldest of too many large images by a line each.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from holdfast.messages.size.scale_image import can_scale_images, scale_down_image
from holdfast.providers.common.json.json_path import JsonTree, PathSteps, replace_json_at_paths
from holdfast.providers.common.json.lenient_json import read_json_text
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.providers.fix.fix_context import FixContext, RequestFix, build_request_fix
from holdfast.providers.rules.rule import Finding

_SIZE_RULES = frozenset({"anthropic.image-size", "anthropic.image-bytes"})


def scale_oversized_images(
    body: bytes, context: FixContext, errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Scale each image that the validator calls too large; those that cannot be scaled stay for later steps."""
    size_errors = [finding for finding in errors if finding.rule in _SIZE_RULES]
    if not size_errors or not can_scale_images():
        return body, []
    dialect = context.dialect
    max_pixels = min(dialect.max_image_pixels, dialect.large_image_pixels)
    tree = JsonTree(Raw(body))
    changes: dict[PathSteps, bytes | None] = {}
    fixes: list[RequestFix] = []
    for finding in size_errors:
        source: PathSteps = (*tree.parse_path(finding.path), "source")
        scaled = scale_down_image(read_json_text(tree.get_raw((*source, "data"))), max_pixels)
        if scaled is None or len(scaled.data) > dialect.max_image_bytes:
            continue
        changes[*source, "data"] = encode_json(scaled.data)
        changes[*source, "media_type"] = encode_json(scaled.mime)
        fixes.append(build_request_fix(finding, f"scaled down to at most {max_pixels:,} pixels a side"))
    if not changes:
        return body, []
    return replace_json_at_paths(Raw(body), changes), fixes
