"""References: the paths, identifiers, numbers and names by which a conversation points at things.

One extractor for history, context and future. No expression can match across whitespace, so a text is cut at
whitespace first and each distinct piece is looked at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.text_runs import merge_adjacent_texts

Reference: TypeAlias = tuple[str, str]
"""Kind and key: ``("path", "src/main.py")``."""

_URL_PATTERN = re.compile(r"https?://[^\s\"'<>)\]}`]+")
_PATH_PATTERN = re.compile(
    r"(?:(?<![\w.@+%-])|(?=[~/]|[A-Za-z]:))(?:[A-Za-z]:)?(?:~|\.{1,2})?/?(?:[\w.@+%-]+/)+[\w.@+%-]+"
)
_EXTENSIONS = (
    "py|pyi|ts|tsx|js|jsx|mjs|cjs|ex|exs|heex|md|json|jsonl|yaml|yml|toml|rs|go|java|kt|c|h|cc|cpp|hpp|css|scss|html"
    "|sh|sql|txt|lock|cfg|ini|rb|php|swift|vue|svelte|log|csv|traj|patch|diff"
)
_FILE_PATTERN = re.compile(rf"\b[\w-]{{2,}}\.(?:{_EXTENSIONS})\b")
_NAME_CHAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*(?:(?:\.|::|->|#)[A-Za-z_$][A-Za-z0-9_$]*)*")
_NAME_SEPARATOR = re.compile(r"\.|::|->|#")
_CODE_SHAPED = re.compile(r".+_.+|.*(?:[a-z0-9][A-Z]|[A-Z]{2,}[a-z])")
_KEBAB_PATTERN = re.compile(r"\b[a-z][a-z0-9]+(?:-[a-z0-9]+)+\b")
_HEX_PATTERN = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")
_NUMBER_PATTERN = re.compile(r"\b\d+\.\d+\b|\b\d{3,}\b")
_COMMON_NUMBERS = frozenset({"100", "127", "200", "404", "500", "1000", "000"})
_REFERENCE_HINT = re.compile(r"[\d_/.#-]|[a-z0-9][A-Z]|[A-Z]{2}[a-z]|::")
"""A piece without any of these holds no reference: most words of prose are done here."""


def extract_references(text: str) -> frozenset[Reference]:
    """Return the references in ``text``."""
    refs: set[Reference] = set()
    for piece in text.split():
        refs.update(extract_word_references(piece))
    return frozenset(refs)


def extract_word_references(piece: str) -> tuple[Reference, ...]:
    """Return the references in a text without whitespace, each once, in a stable order."""
    return get_cached_word_references(piece) if len(piece) <= MAX_CACHED_CHARS else _extract_uncached(piece)


MAX_CACHED_CHARS = 300
"""Characters up to which a piece is worth remembering; longer ones (base64, minified code) hardly ever return."""


@lru_cache(maxsize=1 << 14)
def get_cached_word_references(piece: str) -> tuple[Reference, ...]:
    """Return what ``extract_word_references`` does, remembered: of 272,000 pieces of recorded sessions 92 % were
    known [M].
    """
    return _extract_uncached(piece)


def _extract_uncached(piece: str) -> tuple[Reference, ...]:
    if _REFERENCE_HINT.search(piece) is None:
        return ()
    return tuple(dict.fromkeys(_iter_references(piece)))


def _iter_references(piece: str) -> Iterator[Reference]:
    for match in _URL_PATTERN.finditer(piece):
        yield "url", match.group().rstrip(".,:;")
    yield from _iter_paths(piece)
    for match in _FILE_PATTERN.finditer(piece) if "." in piece else ():
        yield "file", match.group()
    yield from _iter_identifiers(piece)
    for match in _KEBAB_PATTERN.finditer(piece):
        if len(match.group()) >= 7:
            yield "kebab", match.group()
    for match in _HEX_PATTERN.finditer(piece):
        yield "hex", match.group()[:7]
    for match in _NUMBER_PATTERN.finditer(piece):
        if match.group() not in _COMMON_NUMBERS:
            yield "number", match.group()


def _iter_identifiers(piece: str) -> Iterator[Reference]:
    for match in _NAME_CHAIN.finditer(piece):
        for name in _NAME_SEPARATOR.split(match.group()):
            if len(name) >= 5 and _CODE_SHAPED.match(name.strip("_")):
                yield "id", name


def _iter_paths(piece: str) -> Iterator[Reference]:
    for match in _PATH_PATTERN.finditer(piece):
        path = match.group()
        if len(path) < 6 or "://" in piece[max(0, match.start() - 3) : match.end()]:
            continue
        names = [name for name in path.split("/") if name not in {"", ".", "..", "~"}]
        if not names:
            continue
        yield "path", "/".join(names[-2:])
        if _FILE_PATTERN.fullmatch(names[-1]):
            yield "file", names[-1]


def iter_reference_texts(message: Message) -> Iterator[str]:
    """Yield the texts in which a message refers to things: its words, results, and string leaves of arguments."""
    for part in merge_adjacent_texts(message):
        yield from iter_part_texts(part)


def iter_part_texts(part: Part) -> Iterator[str]:
    """Yield the texts of one part."""
    if isinstance(part, Text | Thinking):
        yield part.text
    elif isinstance(part, ToolCall):
        yield from iter_json_strings(decode_call_arguments(part))
    elif isinstance(part, ToolResult):
        for inner in part.content:
            if isinstance(inner, Text):
                yield inner.text


def decode_call_arguments(call: ToolCall) -> Any:
    """Return the decoded arguments of a call; the text itself when it is no JSON. No half of a character is left."""
    return _decode_json_or_text(call.arguments.encode("utf-8", "replace").decode())


def encode_call_arguments(call: ToolCall) -> str:
    """Return the arguments of a call as the JSON text of an object: as they are, or out of a string; ``{}`` for none.

    Anything else is wrapped as its ``value``.
    """
    parsed_arguments = decode_call_arguments(call)
    text = parsed_arguments if isinstance(parsed_arguments, str) else call.arguments.encode("utf-8", "replace").decode()
    if isinstance(_decode_json_or_text(text), dict):
        return text
    return (
        "{}"
        if parsed_arguments is None or not text.strip()
        else msgspec.json.encode({"value": parsed_arguments}).decode()
    )


def _decode_json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def iter_json_strings(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the strings in a JSON value, in order; nothing below 64 levels."""
    if isinstance(value, str):
        yield value
    elif depth < 64 and isinstance(value, dict):
        for inner in value.values():
            yield from iter_json_strings(inner, depth + 1)
    elif depth < 64 and isinstance(value, list):
        for inner in value:
            yield from iter_json_strings(inner, depth + 1)


@cache
def load_common_references() -> frozenset[str]:
    """Return the keys that belong to every project: language keywords, builtins, the commonest file names."""
    text = files("holdfast.data").joinpath("common_references.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))
