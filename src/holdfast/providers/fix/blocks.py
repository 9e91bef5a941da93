"""Rewrite content blocks, bare texts and tool outputs in the form that an API has for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Raw

from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.json_path import get_json_first_char
from holdfast.providers.common.json.lenient_json import read_json_items, read_json_text
from holdfast.providers.common.json.raw_json import decode_json_fields, encode_json
from holdfast.providers.fix.lost_text import TEXT_BLOCK_TYPES

_RESULT_BLOCK_TYPES = frozenset(
    {"image", "document", "search_result", "image_url", "input_image", "input_file", "input_audio", "file",
     "tool_reference", "browser_state", "computer_screenshot"}
)  # fmt: skip
"""Types of blocks, other than text, that some API accepts inside of a tool result."""
# Frameworks write {"type": "text", "content": …} or "value" where an API has "text"; the API's own key comes first.
_TEXT_KEYS = ("text", "content", "value")
"""Keys under which text blocks hold their words, in order of preference."""
_GEMINI_MEDIA_FIELDS = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
_GEMINI_PAYLOAD_FIELDS = _GEMINI_MEDIA_FIELDS | {
    "functionCall",
    "function_call",
    "functionResponse",
    "function_response",
}
_SIGNATURE_FIELDS = ("thoughtSignature", "thought_signature")


def wrap_in_list(raw: Raw) -> list[Raw]:
    """Return the elements of a JSON list, an empty list for ``null``, and ``[raw]`` for any other value."""
    kind = get_json_first_char(raw)
    if kind == "[":
        return read_json_items(raw)
    return [] if kind == "n" else [raw]


def encode_raw(value: object) -> Raw:
    """Encode a value as raw JSON, to be a field or an element of another value."""
    return Raw(encode_json(value))


def decode_fields_if_object(raw: Raw | None) -> dict[str, Raw]:
    """Return the fields of a JSON object, or an empty dict for any other value."""
    if raw is not None and get_json_first_char(raw) == "{":
        return decode_json_fields(raw)
    return {}


def iter_replacement_blocks(raw: Raw, spec: ApiSpec, role: str) -> Iterator[Raw]:
    """Yield the blocks of this API that replace one element of a message's content.

    A block that the API accepts is yielded as it is (the same bytes). A bare text becomes a text block, a list its
    elements, ``null`` nothing, and a number or boolean its JSON as text.
    """
    kind = get_json_first_char(raw)
    if kind == '"':
        yield build_text_block(read_json_text(raw), spec, role)
    elif kind == "[":
        for leaf in _iter_flat(raw):
            yield from iter_replacement_blocks(leaf, spec, role)
    elif kind == "{":
        yield from _iter_object_replacements(raw, spec, role)
    elif kind != "n":
        yield build_text_block(bytes(raw).decode(), spec, role)


def _iter_object_replacements(raw: Raw, spec: ApiSpec, role: str) -> Iterator[Raw]:
    is_gemini_part = not get_text_block_type(spec, role)
    if not is_gemini_part:
        yield _reshape_block(raw, spec, role)
        return
    part = _drop_invalid_signature(raw)
    split_parts = _split_text_part(decode_json_fields(part))
    if split_parts:
        yield from split_parts
    else:
        yield _reshape_block(part, spec, role)


def _iter_flat(raw: Raw) -> Iterator[Raw]:
    """Yield the elements of a nested list in order; a stack in place of recursion, since any depth may arrive."""
    waiting = [raw]
    while waiting:
        element = waiting.pop()
        if get_json_first_char(element) == "[":
            waiting += reversed(read_json_items(element))
        else:
            yield element


def _drop_invalid_signature(raw: Raw) -> Raw:
    """Return a Gemini part without signatures that are not strings; the rest of the part is kept."""
    raw_fields = decode_json_fields(raw)
    invalid_keys = []
    for key in _SIGNATURE_FIELDS:
        is_string_or_absent = get_json_first_char(raw_fields.get(key)) in ("", '"', "n")
        if not is_string_or_absent:
            invalid_keys.append(key)
    if not invalid_keys:
        return raw
    return encode_raw({key: value for key, value in raw_fields.items() if key not in invalid_keys})


def _split_text_part(fields: Mapping[str, Raw]) -> list[Raw]:
    """Split a Gemini part that holds both text and a payload in two, or return an empty list for any other part.

    Gemini refuses a part with two data fields.
    """
    has_payload = any(key in _GEMINI_PAYLOAD_FIELDS for key in fields)
    if not has_payload or not read_json_text(fields.get("text")):
        return []
    return [
        encode_raw({"text": fields["text"]}),
        encode_raw({key: raw for key, raw in fields.items() if key != "text"}),
    ]


def _reshape_block(raw: Raw, spec: ApiSpec, role: str) -> Raw:
    """Rewrite a text block, or a foreign call or result, as this API's text block; return any other as it is."""
    raw_fields = decode_json_fields(raw)
    block_type = read_json_text(raw_fields.get("type"))
    if block_type in spec.shape.foreign_call_types:
        return build_text_block(render_foreign_block(raw_fields), spec, role)
    if block_type and block_type not in TEXT_BLOCK_TYPES:
        return raw
    text = find_block_text(raw_fields)
    is_own_type = block_type == get_text_block_type(spec, role)
    if not text or (is_own_type and get_json_first_char(raw_fields.get("text")) == '"'):
        return raw
    new_fields = decode_json_fields(build_text_block(text, spec, role))
    # A cache breakpoint is about the position, not the words; without it the whole prompt is written anew.
    if spec.supports_cache_control and "cache_control" in raw_fields:
        new_fields["cache_control"] = raw_fields["cache_control"]
    return encode_raw(new_fields)


def find_block_text(fields: Mapping[str, Raw]) -> str:
    """Return the words of a block, under whichever of the known keys they are, or an empty string."""
    for key in _TEXT_KEYS:
        raw = fields.get(key)
        is_text_or_object = raw is not None and get_json_first_char(raw) in '"{'
        texts = []
        for piece in [raw] if raw is not None and is_text_or_object else read_json_items(raw):
            piece_kind = get_json_first_char(piece)
            if piece_kind == '"':
                texts.append(read_json_text(piece))
            elif piece_kind == "{":
                texts.append(find_block_text(decode_json_fields(piece)))
        joined_text = "\n".join(text for text in texts if text)
        if joined_text:
            return joined_text
    return ""


def get_text_block_type(spec: ApiSpec, role: str) -> str:
    """Return the type of a text block in a message of ``role``, or an empty string if blocks have no type (Gemini)."""
    user_type, assistant_type = spec.shape.text_types
    return assistant_type if role == "assistant" else user_type


def build_text_block(text: str, spec: ApiSpec, role: str) -> Raw:
    """Build a text block of this API."""
    block_type = get_text_block_type(spec, role)
    return encode_raw({"type": block_type, "text": text} if block_type else {"text": text})


def render_foreign_block(fields: Mapping[str, Raw]) -> str:
    """Render a call or result of another API as text: the output of a result, or the JSON of a call without its ids."""
    output = fields["content"] if "content" in fields else fields.get("output")
    if output is None:
        told_fields = {}
        for key, raw in fields.items():
            if key not in ("type", "id", "call_id", "cache_control"):
                told_fields[key] = raw
        return encode_json(told_fields).decode()
    texts = []
    for block in wrap_in_list(output):
        if get_json_first_char(block) == "{":
            text_field = decode_json_fields(block).get("text")
        else:
            text_field = block
        text = read_json_text(text_field)
        if text:
            texts.append(text)
    return "\n".join(texts) or bytes(output).decode()


def reshape_tool_output(raw: Raw, spec: ApiSpec) -> Raw:
    """Rewrite the output of a tool as a text or a list of blocks; anything else becomes its JSON as text.

    Tools return any JSON, and SDKs pass it on unchanged; APIs take only texts and their own blocks.
    """
    kind = get_json_first_char(raw)
    if kind in ('"', "n", ""):
        return raw
    is_list = kind == "["
    is_block = kind == "{" and _is_result_block(decode_json_fields(raw))
    if not is_list and not is_block:
        return encode_raw(bytes(raw).decode())
    blocks = [new_block for block in wrap_in_list(raw) for new_block in _reshape_result_block(block, spec)]
    return encode_raw(blocks)


def _is_result_block(fields: Mapping[str, Raw]) -> bool:
    """Return whether an object is a block of text or media, and not just JSON that a tool returned."""
    block_type = read_json_text(fields.get("type"))
    if block_type in TEXT_BLOCK_TYPES or fields.keys() == {"text"}:
        return get_json_first_char(fields.get("text")) == '"'
    return block_type in _RESULT_BLOCK_TYPES or any(key in _GEMINI_MEDIA_FIELDS for key in fields)


def _reshape_result_block(raw: Raw, spec: ApiSpec) -> Iterator[Raw]:
    """Yield the replacements of one element of a tool's output."""
    raw_fields = decode_fields_if_object(raw)
    # A result inside of a result comes from converters that nest what they wrap; its words are enough.
    if read_json_text(raw_fields.get("type")) in ("tool_result", "tool_use"):
        yield build_text_block(render_foreign_block(raw_fields), spec, "tool")
    elif raw_fields and not _is_result_block(raw_fields):
        yield build_text_block(bytes(raw).decode(), spec, "tool")
    else:
        yield from iter_replacement_blocks(raw, spec, "tool")
