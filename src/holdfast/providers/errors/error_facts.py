"""What an error says, gathered from any of its shapes: JSON, JSON inside of text, HTML, bytes of any kind."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.errors.number_text import canonicalize_number_text
from holdfast.providers.errors.report import ErrorReport

_MAX_TEXT_CHARS = 20_000
"""Characters of one text that are read; the longest error seen has 4,000."""
_MAX_TEXTS = 40
_MAX_CODE_CHARS = 200
_MAX_COUNT = 10**15
_MAX_DEPTH = 10
"""Levels of nesting that are followed; OpenRouter around LiteLLM around a provider has six."""
_MESSAGE_FIELDS = frozenset(
    {"message", "msg", "detail", "details", "error", "errors", "reason", "raw", "metadata", "cause", "body",
     "title", "innererror", "data", "description", "error_description", "error_message", "errormessage",
     "error_msg", "response", "exception", "failure", "fault", "response_body", "codex_error_info", "original",
     "lasterror", "previous_errors", "base_resp", "status_msg"}
)  # fmt: skip
"""Fields in which providers and gateways say what happened. Others (``input``, ``content``) may quote the request."""
_CODE_FIELDS = frozenset(
    {"code", "type", "status", "error_code", "errorcode", "__type", "error_type", "status_code", "statuscode",
     "http_status"}
)  # fmt: skip
_COUNT_FIELDS = {
    "n_ctx": "limit",
    "context_length": "limit",
    "context_window": "limit",
    "max_context_length": "limit",
    "max_prompt_tokens": "limit",
    "n_prompt_tokens": "requested",
    "prompt_tokens": "requested",
    "requested_tokens": "requested",
}
"""Fields beside a message that hold the numbers (llama.cpp, ds4)."""
_DELAY_FIELDS = {"retry_after": 1.0, "retry-after": 1.0, "retryafter": 1.0, "retrydelay": 1.0, "retry_after_ms": 0.001}
"""Fields that say when to come back, and the seconds of their unit."""
_LEADING_NUMBER = re.compile(r"^\d{1,9}(?:\.\d{1,9})?")

_URL = re.compile(r"https?://[^\s\"'<>)\]}]{1,2000}")
"""Links name rate limits and billing whatever the error is."""
_TAG = re.compile(
    r"<(?:script|style)\b.{0,4000}?</(?:script|style)>|<[a-zA-Z/!][^<>]{0,400}>", re.DOTALL | re.IGNORECASE
)
_QUOTES = re.compile(r"[\"'`*\u2018\u2019\u201c\u201d\\]")
_SPACE = re.compile(r"\s+")
_NON_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")
_LEADING_STATUS = re.compile(r"^\W{0,3}(?:http |error |api error |error code:? |status code:? )*([45]\d\d)\b")
_NAMED_STATUS = re.compile(r"(?:status(?: code)?|http|error code|api error)[ :=(]{1,3}([45]\d\d)\b")


class ErrorFacts(Struct, frozen=True):
    """What an error says, in plain words: lower case, no quotes, no links, numbers as digits, a text a line.

    ``raw_text`` has the numbers as they were written; ``codes`` are letters and digits alone; ``counts`` are fields
    beside a message that hold numbers; ``retry_delays`` are seconds.
    """

    plain_text: str
    raw_text: str
    codes: frozenset[str]
    statuses: frozenset[int]
    counts: Mapping[str, int]
    retry_delays: tuple[float, ...]


def collect_error_facts(report: ErrorReport) -> ErrorFacts:
    """Return what ``report`` says, the same for every order of fields."""
    collector = _FactCollector(report.status, report.code)
    collector.add_value(report.message, _MAX_DEPTH)
    collector.add_value(report.body, _MAX_DEPTH)
    text = "\n".join(sorted({line for line in map(_normalize_text, collector.texts) if line}))
    raw = "\n".join(sorted(collector.texts)).lower()
    statuses = frozenset(collector.statuses | set(_find_stated_statuses(text)))
    return ErrorFacts(
        text, raw, frozenset(collector.codes), statuses, collector.counts, tuple(sorted(collector.delays))
    )


def _find_stated_statuses(text: str) -> Iterator[int]:
    """Yield the statuses that texts name: at their beginning, or called so."""
    for line in text.split("\n"):
        for match in (_LEADING_STATUS.search(line), _NAMED_STATUS.search(line)):
            if match:
                yield int(match[1])


class _FactCollector:
    """What was gathered so far."""

    def __init__(self, status: int | None, code: str) -> None:
        self.texts: set[str] = set()
        self.codes = set(filter(None, map(_normalize_code, re.split(r"[\s/|,()]+", code[:_MAX_CODE_CHARS]))))
        self.statuses = {status} if status else set()
        self.counts: dict[str, int] = {}
        self.delays: list[float] = []

    def add_value(self, content: Any, depth: int) -> None:
        """Add what ``content`` says, whatever it is."""
        if depth <= 0 or len(self.texts) >= _MAX_TEXTS:
            return
        if isinstance(content, bytes | bytearray | memoryview):
            content = bytes(content).decode("utf-8", "replace")
        if isinstance(content, str):
            self._add_text(content, depth)
        elif isinstance(content, Mapping):
            self._add_wrapped_error(content, depth)
            for key, value in sorted(content.items(), key=_get_item_name):
                self._add_field(str(key).lower(), value, depth - 1)
        elif isinstance(content, list | tuple):
            for element in content[:_MAX_TEXTS]:
                self.add_value(element, depth - 1)

    def _add_wrapped_error(self, value: Mapping[Any, Any], depth: int) -> None:
        """Add what stands alone under a name of the error (events of AWS)."""
        key, inside = next(iter(value.items()), ("", None))
        if len(value) == 1 and isinstance(inside, Mapping) and str(key).lower() not in _MESSAGE_FIELDS:
            self._add_code(str(key)[:_MAX_CODE_CHARS])
            self.add_value(inside, depth - 1)

    def _add_text(self, value: str, depth: int) -> None:
        around, inside = _split_embedded_json(value)
        for element in inside:
            self.add_value(element, depth - 1)
        if around:
            self.texts.add(around[:_MAX_TEXT_CHARS])

    def _add_field(self, key: str, value: Any, depth: int) -> None:
        if key in _CODE_FIELDS and type(value) in {str, int}:
            self._add_code(str(value)[:_MAX_CODE_CHARS])
        elif key in _COUNT_FIELDS and type(value) is int and 0 < value < _MAX_COUNT:
            self.counts[_COUNT_FIELDS[key]] = max(value, self.counts.get(_COUNT_FIELDS[key], 0))
        elif key in _DELAY_FIELDS:
            self.delays += [float(number) * _DELAY_FIELDS[key] for number in _LEADING_NUMBER.findall(str(value))]
        elif key in _MESSAGE_FIELDS:
            self.add_value(value, depth)

    def _add_code(self, value: str) -> None:
        if len(value) == 3 and value.isascii() and value.isdecimal():
            self.statuses.add(int(value))
        if code := _normalize_code(value):
            self.codes.add(code)


def _get_item_name(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _normalize_code(text: str) -> str:
    """Return a code without case and separators, so that names of errors in any style are the same."""
    return _NON_ALPHANUMERIC.sub("", text.lower())


def _split_embedded_json(text: str) -> tuple[str, tuple[Any, ...]]:
    """Return what stands around the JSON in ``text``, and the JSON; none where there is none."""
    if "data:" in text and (events := tuple(_parse_sse_data(text))):
        return "", events
    begin, end = text.find("{"), text.rfind("}") + 1
    if begin < 0 or end <= begin:
        return text, ()
    if text.lstrip().startswith("[") and (inside := _try_parse_json(text)) is not None:
        return "", (inside,)
    inside = _try_parse_json(text[begin:end])
    if inside is None:
        return text, ()
    return (text[:begin] + text[end:]).strip("[] \n\t"), (inside,)


def _parse_sse_data(text: str) -> Iterator[Any]:
    """Yield the JSON of server-sent events."""
    for line in text.splitlines()[:_MAX_TEXTS]:
        if line.startswith("data:") and (inside := _try_parse_json(line[5:])) is not None:
            yield inside


def _try_parse_json(text: str) -> Any:
    """Return the JSON value that ``text`` is; None where it is none."""
    try:
        return json.loads(text)  # takes halves of surrogate pairs, which texts cut by gateways have
    except (RecursionError, ValueError):
        return None


def _normalize_text(text: str) -> str:
    if "<" in text:
        text = html.unescape(_TAG.sub(" ", text))
    return _SPACE.sub(" ", canonicalize_number_text(_QUOTES.sub("", _URL.sub(" ", text).replace("\\n", " ")))).strip()
