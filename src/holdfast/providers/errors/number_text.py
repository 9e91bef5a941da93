"""Rewrite numbers of any notation as plain digits, and parse the delays that error texts state."""

from __future__ import annotations

import re
import unicodedata

_MOST_DIGITS = 15
"""Digits of the longest number that may be a count of tokens; longer ones are ids or times."""
_THIN_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3})")
# One alternative a notation: 1,048,576 (also with "." or "_"), 1 048 576, and plain digits with an optional fraction.
# Two groups with a single space ("128 000") are one number only before "tok": "error 400 123" is two.
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?P<groups>\d{1,3}(?P<mark>[,._])\d{3}(?:(?P=mark)\d{3})*)(?![\d])"
    r"|(?P<spaced>\d{1,3}(?:(?: \d{3}){2,4}(?!\d)| \d{3}(?= tok)))|"
    r"(?P<digits>\d+)(?P<fraction>\.\d+)?)"
    r"(?P<unit>(?:k|m)(?![a-z0-9]))?(?=(?P<tokens>[ -]?tok)?)"
)
# GPT4All writes "The prompt is4233tokens and the context window is2048!" (zylon-ai/private-gpt#663).
_GLUED_BEFORE = re.compile(r"(?<=\b(?:is|of))(?=\d{3})")
_GLUED_AFTER = re.compile(r"(?<=\d{3})(?=tokens?\b)")
# TensorRT-LLM writes a count as a decimal number: "prompt length (4097.0)".
_WHOLE_DECIMAL = re.compile(r"(?<![\w.])(\d{3,15})\.0{1,2}(?![\d.\w])")
_MULTIPLIERS = {"k": 1_000, "m": 1_000_000}
_RETRY_WORDS = (
    r"try again|retry|retrying|wait|available again|resets?|esper[ae]r?|aguarde|int[eé]nt[ae]lo|tente|patiente[rz]|"
    r"attend(?:ez|re|i|ere)|réessaye[rz]|warten? ?(?:sie)?|versuchen? (?:sie )?es|riprova(?:re)?"
)
"""Words that introduce a time to come back, in English and in the languages that ``patterns.RATE_LIMIT`` covers."""
_RETRY_PHRASE = re.compile(
    rf"(?:{_RETRY_WORDS})(?: your request)?(?: again| de nuevo| novamente)?[ :]{{0,2}}"
    r"(?:after|in|for|en|em|dans|tra|fra|nach|après)?[ :~]{1,2}"
    r"(?:about )?((?:\d{1,9}(?:\.\d{1,9})? ?[a-z]{1,12}[ ,]{0,2}(?:(?:and|y|et|und|e) )?){1,4})"
)
# "ms" and the words of other languages come before the single letters: "stunde" must not be read as seconds.
_DURATION_PIECE = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|milli|stunde|ora\b|ore\b|tag|jour|giorn|s|m|h|d)[a-z]{0,11}"
)
_SECONDS_BY_UNIT = {
    **dict.fromkeys(("ms", "milli"), 0.001), "s": 1.0, "m": 60.0,
    **dict.fromkeys(("h", "stunde", "ora", "ore"), 3_600.0),
    **dict.fromkeys(("d", "tag", "jour", "giorn"), 86_400.0),
}  # fmt: skip


def canonicalize_number_text(text: str) -> str:
    """Return ``text`` in lower case, with numbers like ``1,048,576``, ``1_000``, ``200k`` and ``1.05M`` as digits."""
    lower_text = unicodedata.normalize("NFKC", _THIN_SPACE.sub("_", text)).lower()
    lower_text = _GLUED_AFTER.sub(" ", _GLUED_BEFORE.sub(" ", lower_text))
    lower_text = _WHOLE_DECIMAL.sub(r"\1", lower_text)
    return _NUMBER.sub(_expand_number, lower_text)


def _expand_number(match: re.Match[str]) -> str:
    number = match["groups"] or match["spaced"] or match["digits"]
    # A number of 15 digits has up to four separators. Longer ones count no tokens, and int() refuses very long ones.
    if len(number) > _MOST_DIGITS + 4:
        return "#"
    unit = match["unit"]
    fraction = match["fraction"] or ""
    is_before_tokens = match["tokens"] is not None
    # 3.844 seconds are not 3,844; "128.000 tokens" is 128,000, as German texts write it.
    if match["mark"] == "." and number.count(".") == 1 and not is_before_tokens:
        return match[0]
    if unit is None:
        return match[0] if fraction else re.sub(r"\D", "", number)
    return str(_scale_number(number, fraction, _MULTIPLIERS[unit]))


def _scale_number(number: str, fraction: str, multiplier: int) -> int:
    """Multiply a decimal number, written with any separators, exactly, and round it down."""
    if number.count(".") < 2:
        whole, _, places = (number + fraction).partition(".")
    else:  # points between groups of thousands
        whole, places = number, fraction[1:]
    places = places[:_MOST_DIGITS]
    scale: int = 10 ** len(places)
    return int(re.sub(r"\D", "", whole) + places) * multiplier // scale


def parse_retry_delay(text: str) -> float | None:
    """Parse the first delay in ``text``, such as ``try again in 1m2.5s``, to seconds, or return None."""
    match = _RETRY_PHRASE.search(text)
    if match is None:
        return None
    pieces = _DURATION_PIECE.findall(match[1])
    if pieces:
        return sum(float(count) * _SECONDS_BY_UNIT[unit] for count, unit in pieces)
    return None
