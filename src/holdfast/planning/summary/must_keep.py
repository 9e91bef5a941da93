"""What a summary must keep: exact identifiers of the newest messages, and what the user asked for last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.references import arguments, leaves
from holdfast.messages.text_runs import parts_said
from holdfast.planning.extract.client_notes import apart
from holdfast.planning.extract.previous_summary import said_by_user

KEYWORDS = 12
"""Words of a request that tell whether it is reflected. [O]"""
_FEW = 3
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
_EDGES = " \t\r\n.,:;!?\"'`()[]{}<>"
_SHORTEST, _LONGEST = 4, 200
"""Characters of an identifier; what is longer is data, which nobody copies letter by letter. [O] [H]"""
_WORD = re.compile(r"[^\W_]+")
_DENSE = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+")
"""Scripts without spaces between words, or with whole phrases between them."""
_COMMON_WORDS = (
    "about after again all also and any are because been before being but can could did does doing done for from get"
    " give had has have her here him his how into its just let like make may might more must need not now off one only"
    " our out over own please same shall she should some such sure take tell than that the their them then there these"
    " they this those too under use very want was way were what when where which while who why will with would yes you"
    " your"
)
"""Words that tell nothing about what is asked for."""
_COMMON = frozenset(_COMMON_WORDS.split())


def exact(text: str) -> Iterator[str]:
    """Yield the identifiers in ``text`` as they are written, without what stands around them."""
    for match in _IDENTIFIER.finditer(text):
        word = match.group().strip(_EDGES).removeprefix("0x")
        if _SHORTEST <= len(word) <= _LONGEST:
            yield word


def missing(summary: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``wanted`` that do not stand in ``summary``; hexadecimal ones may be written small or large."""
    capitals = summary.upper()
    return tuple([one for one in wanted if one not in summary and not (is_hex(one) and one.upper() in capitals)])


def is_hex(word: str) -> bool:
    """Return whether ``word`` is a hexadecimal number long enough to name something."""
    return re.fullmatch(r"[0-9A-Fa-f]{8,}", word) is not None


def newest_identifiers(messages: Sequence[Message], newest: int, most: int) -> tuple[str, ...]:
    """Return up to ``most`` identifiers in what user and agent said and called in the ``newest`` messages.

    The newest come first. What tools gave back does not count: a listing names hundreds of things.
    """
    said = (text for message in reversed(messages[-newest:] if newest else ()) for text in _said(message))
    return tuple(dict.fromkeys(one for text in said for one in exact(text)))[:most]


def _said(message: Message) -> Iterator[str]:
    for part in parts_said(message):
        if isinstance(part, Text) and message.role in {"user", "assistant"}:
            yield part.text
        elif isinstance(part, ToolCall):
            yield from leaves(arguments(part))


# -- the newest request ------------------------------------------------------------------------------------------------


def newest_request(messages: Sequence[Message]) -> str:
    """Return the words of the newest message in which a user speaks; nothing if none does."""
    return apart(next(reversed(list(said_by_user(messages))), ""))[0]


def keywords(text: str) -> tuple[str, ...]:
    """Return the first words of ``text`` that tell what it is about, small, each once.

    Of scripts that put no spaces between words, each two neighbouring signs are one.
    """
    found = (part for word in _WORD.findall(text.lower()) for part in _pieces(word))
    return tuple(dict.fromkeys(found))[:KEYWORDS]


def _pieces(word: str) -> Iterator[str]:
    dense = _DENSE.findall(word)
    for run in dense:
        yield from [run[at : at + 2] for at in range(0, max(1, len(run) - 1), 2)]
    if not dense and len(word) > 2 and word not in _COMMON:
        yield word


def reflects(summary: str, request: str) -> bool:
    """Return whether ``summary`` has enough of the keywords of ``request``: two of three or more, else one."""
    wanted = keywords(request)
    words = set(_WORD.findall(summary.lower()))
    dense = "".join(_DENSE.findall(summary))
    hits = sum(word in words or (_DENSE.match(word) is not None and word in dense) for word in wanted)
    return hits >= (2 if len(wanted) >= _FEW else min(1, len(wanted)))
