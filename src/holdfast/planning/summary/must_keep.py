"""Find what a summary must keep: exact identifiers of the newest messages, and the subject of the newest request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.references import decode_call_arguments, iter_json_strings
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.planning.extract.client_notes import split_client_notes
from holdfast.planning.extract.previous_summary import iter_user_texts

MAX_KEYWORDS = 12
"""Words of a request that are looked for in its summary. OpenClaw's number."""
# A request with so many keywords is reflected if two stand in the summary; a shorter one if one does. OpenClaw's
# number.
_MIN_KEYWORDS_FOR_TWO_HITS = 3
# Addresses, hosts with a port, absolute paths, eight or more hexadecimal digits, six or more decimal ones: as OpenClaw.
_IDENTIFIER = re.compile(
    r"(?P<url>https?://[^\s<>\"'`]+)"
    r"|(?P<place>\b[A-Za-z0-9][\w.-]*\.[\w.-]*[A-Za-z0-9]:\d{1,5}\b|\blocalhost:\d{1,5}\b)"
    r"|(?P<drive>\b[A-Za-z]:\\[\w.\\-]+)"
    r"|(?P<path>(?<![\w/.-])~?/[\w.@+-]{2,}(?:/[\w.@+-]+)+)"
    r"|(?P<hex>(?<![^\W_])(?:0x)?[0-9A-Fa-f]{8,}(?![^\W_]))"
    r"|(?P<number>(?<!\d)\d{6,}(?!\d))"
)
_EDGE_PUNCTUATION = " \t\r\n.,:;!?\"'`()[]{}<>"
# Characters of an identifier. The minimum is OpenClaw's. The maximum was chosen by judgement: longer ones are data, and
# a model cannot be held to copying that letter by letter.
_MIN_IDENTIFIER_CHARS, _MAX_IDENTIFIER_CHARS = 4, 200
_WORD = re.compile(r"[^\W_]+")
# Scripts that put no spaces between words, or between phrases only: kana, Chinese, Korean, Thai.
_UNSPACED_SCRIPT = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+")
# Words that say nothing about the subject of a request.
_STOPWORD_TEXT = (
    "about after again all also and any are because been before being but can could did does doing done for from get"
    " give had has have her here him his how into its just let like make may might more must need not now off one only"
    " our out over own please same shall she should some such sure take tell than that the their them then there these"
    " they this those too under use very want was way were what when where which while who why will with would yes you"
    " your"
)
_STOPWORDS = frozenset(_STOPWORD_TEXT.split())


def find_identifiers(text: str) -> Iterator[str]:
    """Yield the identifiers in ``text`` as they are written, without punctuation around them."""
    for match in _IDENTIFIER.finditer(text):
        word = match.group().strip(_EDGE_PUNCTUATION).removeprefix("0x")
        if _MIN_IDENTIFIER_CHARS <= len(word) <= _MAX_IDENTIFIER_CHARS:
            yield word


def find_missing_identifiers(summary: str, identifiers: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``identifiers`` that ``summary`` lacks; the case of hexadecimal ones does not matter."""
    upper_summary = summary.upper()
    missing: list[str] = []
    for identifier in identifiers:
        is_in_other_case = is_hex_identifier(identifier) and identifier.upper() in upper_summary
        if identifier not in summary and not is_in_other_case:
            missing.append(identifier)
    return tuple(missing)


def is_hex_identifier(word: str) -> bool:
    """Return whether ``word`` is a hexadecimal number long enough to name something."""
    return re.fullmatch(r"[0-9A-Fa-f]{8,}", word) is not None


def collect_newest_identifiers(
    messages: Sequence[Message], message_count: int, max_identifiers: int
) -> tuple[str, ...]:
    """Return up to ``max_identifiers`` distinct identifiers in the last ``message_count`` messages, newest first.

    Only words of the user and agent, and arguments of calls, count. Tool results do not: a listing names hundreds of
    things.
    """
    identifiers: dict[str, None] = {}
    newest_messages = messages[-message_count:] if message_count else ()
    for message in reversed(newest_messages):
        for text in _get_spoken_texts(message):
            for identifier in find_identifiers(text):
                identifiers[identifier] = None
    return tuple(identifiers)[:max_identifiers]


def _get_spoken_texts(message: Message) -> Iterator[str]:
    for part in merge_adjacent_texts(message):
        if isinstance(part, Text) and message.role in {"user", "assistant"}:
            yield part.text
        elif isinstance(part, ToolCall):
            yield from iter_json_strings(decode_call_arguments(part))


# -- the newest request ------------------------------------------------------------------------------------------------


def find_newest_user_text(messages: Sequence[Message]) -> str:
    """Return the user's newest words without a client's notes, or an empty string if there are no words of a user."""
    newest_text = next(reversed(list(iter_user_texts(messages))), "")
    return split_client_notes(newest_text).own_words


def extract_keywords(text: str) -> tuple[str, ...]:
    """Return the first distinct content words of ``text``, in lower case.

    In scripts without spaces between words, each pair of characters counts as a word.
    """
    keywords: dict[str, None] = {}
    for word in _WORD.findall(text.lower()):
        for keyword in _split_keyword(word):
            keywords[keyword] = None
    return tuple(keywords)[:MAX_KEYWORDS]


def _split_keyword(word: str) -> Iterator[str]:
    unspaced_runs = _UNSPACED_SCRIPT.findall(word)
    for run in unspaced_runs:
        for start in range(0, max(1, len(run) - 1), 2):
            yield run[start : start + 2]
    if not unspaced_runs and len(word) > 2 and word not in _STOPWORDS:
        yield word


def has_request_keywords(summary: str, request: str) -> bool:
    """Return whether ``summary`` has enough of the keywords of ``request``: two of three or more, else one."""
    keywords = extract_keywords(request)
    summary_words = set(_WORD.findall(summary.lower()))
    unspaced_text = "".join(_UNSPACED_SCRIPT.findall(summary))
    hits = 0
    for keyword in keywords:
        is_unspaced = _UNSPACED_SCRIPT.match(keyword) is not None
        if keyword in summary_words or (is_unspaced and keyword in unspaced_text):
            hits += 1
    if len(keywords) >= _MIN_KEYWORDS_FOR_TWO_HITS:
        wanted_hits = 2
    else:
        wanted_hits = min(1, len(keywords))
    return hits >= wanted_hits
