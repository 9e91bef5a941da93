"""Numbers in the ways that people and programs write them, made plain digits; and times."""

from __future__ import annotations

import re
import unicodedata

_MOST_DIGITS = 15
"""Longer numbers are no counts of tokens."""
_THIN_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3})")
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?P<groups>\d{1,3}(?P<mark>[,._])\d{3}(?:(?P=mark)\d{3})*)(?![\d])"
    r"|(?P<spaced>\d{1,3}(?:(?: \d{3}){2,4}(?!\d)| \d{3}(?= tok)))|"
    r"(?P<digits>\d+)(?P<fraction>\.\d+)?)"
    r"(?P<unit>(?:k|m)(?![a-z0-9]))?(?=(?P<tokens>[ -]?tok)?)"
)
_MULTIPLIERS = {"k": 1_000, "m": 1_000_000}
_RETRY_WORDS = (
    r"try again|retry|retrying|wait|available again|resets?|esper[ae]r?|aguarde|int[eé]nt[ae]lo|tente|patiente[rz]|"
    r"attend(?:ez|re|i|ere)|réessaye[rz]|warten? ?(?:sie)?|versuchen? (?:sie )?es|riprova(?:re)?"
)
"""What introduces a time to come back. [H] English, and the languages of the rates per minute among the wordings."""
_RETRY_PHRASE = re.compile(
    rf"(?:{_RETRY_WORDS})(?: your request)?(?: again| de nuevo| novamente)?[ :]{{0,2}}"
    r"(?:after|in|for|en|em|dans|tra|fra|nach|après)?[ :~]{1,2}"
    r"(?:about )?((?:\d{1,9}(?:\.\d{1,9})? ?[a-z]{1,12}[ ,]{0,2}(?:(?:and|y|et|und|e) )?){1,4})"
)
_DURATION_PIECE = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|milli|stunde|ora\b|ore\b|tag|jour|giorn|s|m|h|d)[a-z]{0,11}"
)
_SECONDS_BY_UNIT = {
    **dict.fromkeys(("ms", "milli"), 0.001), "s": 1.0, "m": 60.0,
    **dict.fromkeys(("h", "stunde", "ora", "ore"), 3_600.0),
    **dict.fromkeys(("d", "tag", "jour", "giorn"), 86_400.0),
}  # fmt: skip


def canonicalize_number_text(text: str) -> str:
    """Return ``text`` in lower case with ``1,048,576``, ``1_000``, ``200k`` and ``1.05M`` as plain digits."""
    lower_text = unicodedata.normalize("NFKC", _THIN_SPACE.sub("_", text)).lower()
    return _NUMBER.sub(_expand_number, lower_text)


def _expand_number(match: re.Match[str]) -> str:
    whole = match["groups"] or match["spaced"] or match["digits"]
    if len(whole) > _MOST_DIGITS + 4:
        return "#"
    unit, tokens = match["unit"], match["tokens"] is not None
    fraction = match["fraction"] or ""
    if match["mark"] == "." and whole.count(".") == 1 and not tokens:
        return match[0]  # 3.844 seconds are not 3,844
    if fraction and unit is None:
        return match[0]
    if unit is None:
        return re.sub(r"\D", "", whole)
    return str(_scale_number(whole, fraction, _MULTIPLIERS[unit]))


def _scale_number(whole: str, fraction: str, unit: int) -> int:
    """Return a number with a decimal point times its unit, exactly."""
    whole, _, places = (whole + fraction).partition(".") if whole.count(".") < 2 else (whole, "", fraction[1:])
    places = places[:_MOST_DIGITS]
    scale: int = 10 ** len(places)
    return int(re.sub(r"\D", "", whole) + places) * unit // scale


def parse_retry_delay(text: str) -> float | None:
    """Return the seconds of ``try again in 1m2.5s`` and its like, of the first one in ``text``."""
    match = _RETRY_PHRASE.search(text)
    if match is None:
        return None
    pieces = _DURATION_PIECE.findall(match[1])
    return sum(float(count) * _SECONDS_BY_UNIT[unit] for count, unit in pieces) if pieces else None
