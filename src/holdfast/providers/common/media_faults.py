"""Explain what is wrong with inline media in a request, for the lint rules of each API.

What servers say of such media: "The image was specified using the image/png media type, but the image appears to be a
image/jpeg image" (Anthropic; claude-code#12009, llxprt-code#2130, hermes-agent#19195, 2025 and 2026), "Image does not
match the provided media type" (claude-code#6300, 2025-08), "image cannot be empty" (claude-code#12750, 2025-11), "The
PDF specified was not valid" (claude-code#5174, 2025-08); "The image data you provided does not represent a valid image"
(OpenAI; acoyfellow/my-ax#67, 2026-08); "Provided image is not valid" and "Unsupported MIME type: image/jpg" (Gemini;
gemini-cli#27244, 2026-05, comic-translate#399, 2026-01). Gemini refused WebP declared as PNG (gemini-cli#27731,
2026-06), while Vertex took JPEG declared as PNG (Mercor-Intelligence/archipelago#209, 2026-09). A server of Chat
Completions that passes requests on to Claude refuses what Claude refuses (litellm#24900, 2026-04).
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.messages.inline_data import (
    InlineData,
    choose_image_type,
    contradicts_declared_type,
    describe_media_type,
    inspect_base64,
    normalize_mime_type,
)

COMMON_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""The images that Anthropic and OpenAI take."""
_BASE64_PROBLEMS = {
    "empty": "the data are empty; send them or drop the part",
    "characters": "the data are no base64: they have other characters, or one too many; encode the file again",
    "data_url": "the data begin with a data URL's prefix; leave the prefix out",
    "white_space": "the base64 has white space in it; leave it out",
    "url_alphabet": "the base64 has the characters - and _ of URLs; use + and /",
    "padding": "the base64 lacks its padding; end it with =",
}


def explain_media_fault(
    data: str,
    declared: str,
    accepted_images: Collection[str] = (),
    *,
    allows_url_alphabet: bool = False,
    ignores_declared_type: bool = False,
) -> str | None:
    """Return what is wrong with base64 ``data`` that are declared to be of a type, and what to do; None if nothing is.

    ``accepted_images`` are the only types of images that the API takes; empty means any. With ``allows_url_alphabet``
    the base64 may be of the URL-safe kind and without padding. With ``ignores_declared_type`` the server looks at the
    bytes alone.
    """
    facts = inspect_base64(data)
    is_tolerated = allows_url_alphabet and facts.problem in ("url_alphabet", "padding")
    if facts.problem and not is_tolerated:
        return _BASE64_PROBLEMS[facts.problem]
    type_name = normalize_mime_type(declared)
    if not ignores_declared_type and contradicts_declared_type(facts.mime, type_name):
        return _explain_wrong_type(facts, declared, accepted_images)
    image_type = choose_image_type(facts.mime, type_name)
    if image_type and accepted_images and image_type not in accepted_images:
        return f"the image is {image_type}, but only {', '.join(accepted_images)} are accepted; convert the image"
    return None


def explain_data_url_fault(url: object, accepted_images: Collection[str] = ()) -> str | None:
    """Return what is wrong with the base64 of a data URL; None if nothing is, and for anything but such a URL."""
    if not isinstance(url, str):
        return None
    head, comma, data = url.partition(",")
    if not comma or head[:5].lower() != "data:" or not head.lower().endswith(";base64"):
        return None
    return explain_media_fault(data, head[5 : -len(";base64")], accepted_images)


def _explain_wrong_type(facts: InlineData, declared: str, accepted_images: Collection[str]) -> str:
    problem = f"declared {declared or 'without a type'}, but the bytes are {describe_media_type(facts.mime)}"
    can_be_sent = not accepted_images or facts.mime in accepted_images or not facts.mime.startswith("image/")
    if facts.mime.startswith(("image/", "audio/")) and can_be_sent:
        return f"{problem}; declare {facts.mime}"
    return f"{problem}; send another file, or text in its place"
