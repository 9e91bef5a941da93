"""One block of a message, a bare text, or what a tool gave back, in the form that this API has for it."""

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
"""Types of blocks that may stand in what a tool gave back, beside words."""
_TEXT_KEYS = ("text", "content", "value")
"""Keys under which blocks of words have them, the right one first."""
_GEMINI_MEDIA_FIELDS = frozenset({"inlineData", "inline_data", "fileData", "file_data"})
_GEMINI_PAYLOAD_FIELDS = _GEMINI_MEDIA_FIELDS | {
    "functionCall",
    "function_call",
    "functionResponse",
    "function_response",
}
_SIGNATURE_FIELDS = ("thoughtSignature", "thought_signature")


def wrap_in_list(raw: Raw) -> list[Raw]:
    """Return the elements of a list, any other value as a list of it, and nothing for ``null``."""
    if get_json_first_char(raw) == "[":
        return read_json_items(raw)
    return [] if get_json_first_char(raw) == "n" else [raw]


def iter_replacement_blocks(raw: Raw, spec: ApiSpec, role: str) -> Iterator[Raw]:
    """Yield what stands in the place of a block: itself, the same words in this API's form, or blocks of a list."""
    kind = get_json_first_char(raw)
    if kind == '"':
        yield build_text_block(read_json_text(raw), spec, role)
    elif kind == "[":
        for leaf in _iter_flat(raw):
            yield from iter_replacement_blocks(leaf, spec, role)
    elif kind == "{" and not get_text_block_type(spec, role):
        bare = _drop_invalid_signature(raw)
        yield from _split_text_part(decode_json_fields(bare)) or [_reshape_block(bare, spec, role)]
    elif kind == "{":
        yield _reshape_block(raw, spec, role)
    elif kind != "n":
        yield build_text_block(bytes(raw).decode(), spec, role)


def _iter_flat(raw: Raw) -> Iterator[Raw]:
    waiting = [raw]
    while waiting:
        element = waiting.pop()
        if get_json_first_char(element) == "[":
            waiting += reversed(read_json_items(element))
        else:
            yield element


def _drop_invalid_signature(raw: Raw) -> Raw:
    """Return a part of Gemini's without a signature that is no text; what it says stays."""
    raw_fields = decode_json_fields(raw)
    odd = [key for key in _SIGNATURE_FIELDS if get_json_first_char(raw_fields.get(key)) not in ("", '"', "n")]
    return Raw(encode_json({key: value for key, value in raw_fields.items() if key not in odd})) if odd else raw


def _split_text_part(fields: Mapping[str, Raw]) -> list[Raw]:
    """Return a part of Gemini's that says words beside something else as two; nothing for any other."""
    if not read_json_text(fields.get("text")) or not any(key in _GEMINI_PAYLOAD_FIELDS for key in fields):
        return []
    return [
        Raw(encode_json({"text": fields["text"]})),
        Raw(encode_json({key: raw for key, raw in fields.items() if key != "text"})),
    ]


def _reshape_block(raw: Raw, spec: ApiSpec, role: str) -> Raw:
    raw_fields = decode_json_fields(raw)
    kind = read_json_text(raw_fields.get("type"))
    text = find_block_text(raw_fields) if not kind or kind in TEXT_BLOCK_TYPES else ""
    if kind in spec.shape.foreign_call_types:
        return build_text_block(render_foreign_block(raw_fields), spec, role)
    if not text or (_is_own_text_type(kind, spec, role) and get_json_first_char(raw_fields.get("text")) == '"'):
        return raw
    cache_control = (
        {"cache_control": raw_fields["cache_control"]}
        if spec.supports_cache_control and "cache_control" in raw_fields
        else {}
    )
    return Raw(encode_json({**decode_json_fields(build_text_block(text, spec, role)), **cache_control}))


def find_block_text(fields: Mapping[str, Raw]) -> str:
    """Return the words of a block, under whichever key it has them; empty where it has none."""
    for key in _TEXT_KEYS:
        raw = fields.get(key)
        inner = [raw] if raw is not None and get_json_first_char(raw) in '"{' else read_json_items(raw)
        texts = [
            read_json_text(piece) if get_json_first_char(piece) == '"' else find_block_text(decode_json_fields(piece))
            for piece in inner
            if get_json_first_char(piece) in '"{'
        ]
        if text := "\n".join(piece for piece in texts if piece):
            return text
    return ""


def _is_own_text_type(kind: str, spec: ApiSpec, role: str) -> bool:
    return kind == get_text_block_type(spec, role)


def get_text_block_type(spec: ApiSpec, role: str) -> str:
    """Return the type of a block of words by ``role``; empty where blocks have none."""
    user_type, assistant_type = spec.shape.text_types
    return assistant_type if role == "assistant" else user_type


def build_text_block(text: str, spec: ApiSpec, role: str) -> Raw:
    """Return a block of words."""
    block_type = get_text_block_type(spec, role)
    return Raw(encode_json({"type": block_type, "text": text} if block_type else {"text": text}))


def render_foreign_block(fields: Mapping[str, Raw]) -> str:
    """Return in words what a call or a result of another API says."""
    output = next((fields[key] for key in ("content", "output") if key in fields), None)
    if output is not None:
        parts = [
            decode_json_fields(block) if get_json_first_char(block) == "{" else {"text": block}
            for block in wrap_in_list(output)
        ]
        output_text = "\n".join(text for part in parts if (text := read_json_text(part.get("text"))))
        return output_text or bytes(output).decode()
    return encode_json(
        {key: raw for key, raw in fields.items() if key not in ("type", "id", "call_id", "cache_control")}
    ).decode()


def reshape_tool_output(raw: Raw, spec: ApiSpec) -> Raw:
    """Return what a tool gave back as text or blocks: any other value is told as JSON."""
    kind = get_json_first_char(raw)
    if kind in ('"', "n", ""):
        return raw
    if kind == "{" and not _is_result_block(decode_json_fields(raw)):
        return Raw(encode_json(bytes(raw).decode()))
    if kind in "{[":
        return Raw(encode_json([new for block in wrap_in_list(raw) for new in _reshape_result_block(block, spec)]))
    return Raw(encode_json(bytes(raw).decode()))


def _is_result_block(fields: Mapping[str, Raw]) -> bool:
    """Return whether a block says words or shows something; all else that a tool gave back is JSON."""
    kind = read_json_text(fields.get("type"))
    if kind in TEXT_BLOCK_TYPES or fields.keys() == {"text"}:
        return get_json_first_char(fields.get("text")) == '"'
    return kind in _RESULT_BLOCK_TYPES or any(key in _GEMINI_MEDIA_FIELDS for key in fields)


def _reshape_result_block(raw: Raw, spec: ApiSpec) -> Iterator[Raw]:
    """Yield what stands in the place of a block in a result; of a result inside it, the words, of all else the JSON."""
    raw_fields = decode_json_fields(raw) if get_json_first_char(raw) == "{" else {}
    if read_json_text(raw_fields.get("type")) in ("tool_result", "tool_use"):
        yield build_text_block(render_foreign_block(raw_fields), spec, "tool")
    elif raw_fields and not _is_result_block(raw_fields):
        yield build_text_block(bytes(raw).decode(), spec, "tool")
    else:
        yield from iter_replacement_blocks(raw, spec, "tool")
