"""What an error says, gathered from any of its shapes: JSON, JSON inside of text, HTML, bytes of any kind."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.overflow.numerals import plain
from holdfast.providers.overflow.report import ErrorReport

_MOST_TEXT = 20_000
"""Characters of one text that are read; the longest error seen has 4,000."""
_MOST_TEXTS = 40
_LONGEST_CODE = 200
_NO_COUNT = 10**15
_DEPTH = 10
"""Levels of nesting that are followed; OpenRouter around LiteLLM around a provider has six."""
_SAYING = frozenset(
    {"message", "msg", "detail", "details", "error", "errors", "reason", "raw", "metadata", "cause", "body",
     "title", "innererror", "data", "description", "error_description", "error_message", "errormessage",
     "error_msg", "response", "exception", "failure", "fault", "response_body", "codex_error_info", "original",
     "lasterror", "previous_errors", "base_resp", "status_msg"}
)  # fmt: skip
"""Fields in which providers and gateways say what happened. Others (``input``, ``content``) may quote the request."""
_CODES = frozenset(
    {"code", "type", "status", "error_code", "errorcode", "__type", "error_type", "status_code", "statuscode",
     "http_status"}
)  # fmt: skip
_COUNTS = {
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
_DELAYS = {"retry_after": 1.0, "retry-after": 1.0, "retryafter": 1.0, "retrydelay": 1.0, "retry_after_ms": 0.001}
"""Fields that say when to come back, and the seconds of their unit."""
_LEADING_NUMBER = re.compile(r"^\d{1,9}(?:\.\d{1,9})?")

_URL = re.compile(r"https?://[^\s\"'<>)\]}]{1,2000}")
"""Links name rate limits and billing whatever the error is."""
_TAG = re.compile(
    r"<(?:script|style)\b.{0,4000}?</(?:script|style)>|<[a-zA-Z/!][^<>]{0,400}>", re.DOTALL | re.IGNORECASE
)
_QUOTES = re.compile(r"[\"'`*\u2018\u2019\u201c\u201d\\]")
_SPACE = re.compile(r"\s+")
_NO_WORD = re.compile(r"[^a-z0-9]+")
_STATUS = re.compile(r"^\W{0,3}(?:http |error |api error |error code:? |status code:? )*([45]\d\d)\b")
_STATUS_INSIDE = re.compile(r"(?:status(?: code)?|http|error code|api error)[ :=(]{1,3}([45]\d\d)\b")


class Facts(Struct, frozen=True):
    """What an error says, in plain words: lower case, no quotes, no links, numbers as digits, a text a line.

    ``raw`` has the numbers as they were written; ``codes`` are letters and digits alone; ``counts`` are fields beside
    a message that hold numbers; ``delays`` are seconds.
    """

    text: str
    raw: str
    codes: frozenset[str]
    statuses: frozenset[int]
    counts: Mapping[str, int]
    delays: tuple[float, ...]


def read(report: ErrorReport) -> Facts:
    """Return what ``report`` says, the same for every order of fields."""
    heard = _Heard(report.status, report.code)
    heard.take(report.message, _DEPTH)
    heard.take(report.body, _DEPTH)
    text = "\n".join(sorted({line for line in map(_plain_words, heard.texts) if line}))
    raw = "\n".join(sorted(heard.texts)).lower()
    statuses = frozenset(heard.statuses | set(_stated(text)))
    return Facts(text, raw, frozenset(heard.codes), statuses, heard.counts, tuple(sorted(heard.delays)))


def _stated(text: str) -> Iterator[int]:
    """Yield the statuses that texts name: at their beginning, or called so."""
    for line in text.split("\n"):
        for match in (_STATUS.search(line), _STATUS_INSIDE.search(line)):
            if match:
                yield int(match[1])


class _Heard:
    """What was gathered so far."""

    def __init__(self, status: int | None, code: str) -> None:
        self.texts: set[str] = set()
        self.codes = set(filter(None, map(_as_code, re.split(r"[\s/|,()]+", code[:_LONGEST_CODE]))))
        self.statuses = {status} if status else set()
        self.counts: dict[str, int] = {}
        self.delays: list[float] = []

    def take(self, said: Any, depth: int) -> None:
        """Add what ``said`` says, whatever it is."""
        if depth <= 0 or len(self.texts) >= _MOST_TEXTS:
            return
        if isinstance(said, bytes | bytearray | memoryview):
            said = bytes(said).decode("utf-8", "replace")
        if isinstance(said, str):
            self._take_text(said, depth)
        elif isinstance(said, Mapping):
            self._take_wrapped(said, depth)
            for key, value in sorted(said.items(), key=_name):
                self._take_field(str(key).lower(), value, depth - 1)
        elif isinstance(said, list | tuple):
            for one in said[:_MOST_TEXTS]:
                self.take(one, depth - 1)

    def _take_wrapped(self, said: Mapping[Any, Any], depth: int) -> None:
        """Add what stands alone under a name of the error (events of AWS)."""
        key, inside = next(iter(said.items()), ("", None))
        if len(said) == 1 and isinstance(inside, Mapping) and str(key).lower() not in _SAYING:
            self._take_code(str(key)[:_LONGEST_CODE])
            self.take(inside, depth - 1)

    def _take_text(self, said: str, depth: int) -> None:
        around, inside = _embedded(said)
        for one in inside:
            self.take(one, depth - 1)
        if around:
            self.texts.add(around[:_MOST_TEXT])

    def _take_field(self, key: str, value: Any, depth: int) -> None:
        if key in _CODES and type(value) in {str, int}:
            self._take_code(str(value)[:_LONGEST_CODE])
        elif key in _COUNTS and type(value) is int and 0 < value < _NO_COUNT:
            self.counts[_COUNTS[key]] = max(value, self.counts.get(_COUNTS[key], 0))
        elif key in _DELAYS:
            self.delays += [float(found) * _DELAYS[key] for found in _LEADING_NUMBER.findall(str(value))]
        elif key in _SAYING:
            self.take(value, depth)

    def _take_code(self, value: str) -> None:
        if len(value) == 3 and value.isascii() and value.isdecimal():
            self.statuses.add(int(value))
        if code := _as_code(value):
            self.codes.add(code)


def _name(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _as_code(text: str) -> str:
    """Return a code without case and separators, so that names of errors in any style are the same."""
    return _NO_WORD.sub("", text.lower())


def _embedded(text: str) -> tuple[str, tuple[Any, ...]]:
    """Return what stands around the JSON in ``text``, and the JSON; none where there is none."""
    if "data:" in text and (events := tuple(_events(text))):
        return "", events
    begin, end = text.find("{"), text.rfind("}") + 1
    if begin < 0 or end <= begin:
        return text, ()
    if text.lstrip().startswith("[") and (inside := _json(text)) is not None:
        return "", (inside,)
    inside = _json(text[begin:end])
    if inside is None:
        return text, ()
    return (text[:begin] + text[end:]).strip("[] \n\t"), (inside,)


def _events(text: str) -> Iterator[Any]:
    """Yield the JSON of server-sent events."""
    for line in text.splitlines()[:_MOST_TEXTS]:
        if line.startswith("data:") and (inside := _json(line[5:])) is not None:
            yield inside


def _json(text: str) -> Any:
    """Return the JSON value that ``text`` is; None where it is none."""
    try:
        return json.loads(text)  # takes halves of surrogate pairs, which texts cut by gateways have
    except (RecursionError, ValueError):
        return None


def _plain_words(text: str) -> str:
    if "<" in text:
        text = html.unescape(_TAG.sub(" ", text))
    return _SPACE.sub(" ", plain(_QUOTES.sub("", _URL.sub(" ", text).replace("\\n", " ")))).strip()
