"""What a summary must keep: exact identifiers of the newest messages, and what the user asked for last."""

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
"""Words of a request that tell whether it is reflected. [O]"""
_MIN_KEYWORDS_FOR_TWO_HITS = 3
"""From so many of them on, two must stand in the summary. [O]"""
_IDENTIFIER = re.compile(
    r"(?P<url>https?://[^\s<>\"'`]+)"
    r"|(?P<place>\b[A-Za-z0-9][\w.-]*\.[\w.-]*[A-Za-z0-9]:\d{1,5}\b|\blocalhost:\d{1,5}\b)"
    r"|(?P<drive>\b[A-Za-z]:\\[\w.\\-]+)"
    r"|(?P<path>(?<![\w/.-])~?/[\w.@+-]{2,}(?:/[\w.@+-]+)+)"
    r"|(?P<hex>(?<![^\W_])(?:0x)?[0-9A-Fa-f]{8,}(?![^\W_]))"
    r"|(?P<number>(?<!\d)\d{6,}(?!\d))"
)
"""Addresses, hosts with a port, absolute paths, eight hexadecimal digits, six decimal ones. [O]"""
_EDGE_PUNCTUATION = " \t\r\n.,:;!?\"'`()[]{}<>"
_MIN_IDENTIFIER_CHARS, _MAX_IDENTIFIER_CHARS = 4, 200
"""Characters of an identifier; what is longer is data, which nobody copies letter by letter. [O] [H]"""
_WORD = re.compile(r"[^\W_]+")
_UNSPACED_SCRIPT = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+")
"""Scripts without spaces between words, or with whole phrases between them."""
_STOPWORD_TEXT = (
    "about after again all also and any are because been before being but can could did does doing done for from get"
    " give had has have her here him his how into its just let like make may might more must need not now off one only"
    " our out over own please same shall she should some such sure take tell than that the their them then there these"
    " they this those too under use very want was way were what when where which while who why will with would yes you"
    " your"
)
"""Words that tell nothing about what is asked for."""
_STOPWORDS = frozenset(_STOPWORD_TEXT.split())


def find_identifiers(text: str) -> Iterator[str]:
    """Yield the identifiers in ``text`` as they are written, without what stands around them."""
    for match in _IDENTIFIER.finditer(text):
        word = match.group().strip(_EDGE_PUNCTUATION).removeprefix("0x")
        if _MIN_IDENTIFIER_CHARS <= len(word) <= _MAX_IDENTIFIER_CHARS:
            yield word


def find_missing_identifiers(summary: str, identifiers: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``identifiers`` that do not stand in ``summary``; hexadecimal ones may be written small or
    large.
    """
    capitals = summary.upper()
    return tuple(
        [
            identifier
            for identifier in identifiers
            if identifier not in summary and not (is_hex_identifier(identifier) and identifier.upper() in capitals)
        ]
    )


def is_hex_identifier(word: str) -> bool:
    """Return whether ``word`` is a hexadecimal number long enough to name something."""
    return re.fullmatch(r"[0-9A-Fa-f]{8,}", word) is not None


def collect_newest_identifiers(
    messages: Sequence[Message], message_count: int, max_identifiers: int
) -> tuple[str, ...]:
    """Return up to ``max_identifiers`` identifiers in what user and agent said and called in the ``message_count``
    messages.

    The newest come first. What tools gave back does not count: a listing names hundreds of things.
    """
    texts = (
        text
        for message in reversed(messages[-message_count:] if message_count else ())
        for text in _get_spoken_texts(message)
    )
    return tuple(dict.fromkeys(identifier for text in texts for identifier in find_identifiers(text)))[:max_identifiers]


def _get_spoken_texts(message: Message) -> Iterator[str]:
    for part in merge_adjacent_texts(message):
        if isinstance(part, Text) and message.role in {"user", "assistant"}:
            yield part.text
        elif isinstance(part, ToolCall):
            yield from iter_json_strings(decode_call_arguments(part))


# -- the newest request ------------------------------------------------------------------------------------------------


def find_newest_user_text(messages: Sequence[Message]) -> str:
    """Return the words of the newest message in which a user speaks; nothing if none does."""
    return split_client_notes(next(reversed(list(iter_user_texts(messages))), ""))[0]


def extract_keywords(text: str) -> tuple[str, ...]:
    """Return the first words of ``text`` that tell what it is about, small, each once.

    Of scripts that put no spaces between words, each two neighbouring signs are one.
    """
    terms = (part for word in _WORD.findall(text.lower()) for part in _split_keyword(word))
    return tuple(dict.fromkeys(terms))[:MAX_KEYWORDS]


def _split_keyword(word: str) -> Iterator[str]:
    dense = _UNSPACED_SCRIPT.findall(word)
    for run in dense:
        yield from [run[at : at + 2] for at in range(0, max(1, len(run) - 1), 2)]
    if not dense and len(word) > 2 and word not in _STOPWORDS:
        yield word


def has_request_keywords(summary: str, request: str) -> bool:
    """Return whether ``summary`` has enough of the keywords of ``request``: two of three or more, else one."""
    request_keywords = extract_keywords(request)
    words = set(_WORD.findall(summary.lower()))
    dense = "".join(_UNSPACED_SCRIPT.findall(summary))
    hits = sum(
        word in words or (_UNSPACED_SCRIPT.match(word) is not None and word in dense) for word in request_keywords
    )
    return hits >= (2 if len(request_keywords) >= _MIN_KEYWORDS_FOR_TWO_HITS else min(1, len(request_keywords)))
