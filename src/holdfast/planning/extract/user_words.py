"""The user's words, as an extract quotes them: the request under way whole, then what else the budget takes.

What does not fit gives way sentence by sentence. What sounds like a rule stays longest, wherever it was said, for that
is what a long session must not forget; then the newest request, the first, and what was said last.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from itertools import groupby
from math import inf
from typing import TypeAlias

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import count
from holdfast.planning.extract.client_notes import apart
from holdfast.planning.extract.previous_summary import said_by_user

LEAST, OLDER = 64, 0.5
"""[H] Estimator tokens for what the user said before the newest request, however long that is; or so much of the
budget, where that is more."""
FRAME = 6
"""[H] Estimator tokens of what stands around the quotes of one message: who said it, marks, the end of a line."""
RULES, EACH = 0.5, 1 / 3
"""[H] Shares of the budget: for all that sounds like a rule, and for one message, before others had their turn."""
ORDERS = 1 / 8
"""[H] Share of the budget for what the program told the model; twice that where the user leaves so much."""
REACH = 8
"""[H] Characters at each end of a long text that are looked at, for each token of the budget."""
GAP = "[…]"
"""Stands where words are left out."""
_PIECE = re.compile(r".{1,200}?(?:[.!?]\s+|[。！？]\s*|\n\s*|\Z)|.{1,200}", re.DOTALL)
"""A sentence or a line with the blanks behind it; of one without end so much as may stand for itself."""
_RULE = re.compile(
    r"\b(?:must|never|always|only|don'?t|do not|cannot|may not|should|avoid|keep|prefer|instead of|rather than|without|"
    r"make sure|be sure|from now on|important|remember|require[ds]?|forbidden|at (?:most|least)|no (?:more|longer))\b|"
    r"必须|不要|禁止|务必|优先|不能|只能|始终",
    re.IGNORECASE,
)
"""What a sentence has in it that lays something down."""

Pieces: TypeAlias = Sequence[str]
Place: TypeAlias = tuple[int, int]
"""Which message, and which piece of it."""


def user_words(messages: Sequence[Message], budget: int, *, is_open: bool = True) -> tuple[list[str], list[str]]:
    """Return the first and the newest request of the user, and what was said between, in about ``budget`` tokens.

    The newest is whole whatever it costs, if it ``is_open``: nothing newer is said behind what is quoted. Messages of
    which nothing stays are counted in a line at the end. Summaries of what came before are no words of the user, and
    what a client noted beside older ones is not quoted, but for the first, whose notes come last. What the program told
    the model in between has a small share.
    """
    *before, newest = list(said_by_user(messages, attached=True)) or [""]
    said = [apart(text)[0] or text for text in before]
    first = said[0] if said else newest
    older = [text for text in dict.fromkeys([first, *reversed(said)]) if text != newest]
    wanted, spent = (older, count(newest)) if is_open or not newest else ([newest, *older], 0)
    left, orders = max(LEAST, round(OLDER * budget), budget - spent), _told_by_program(messages)
    share = min(ORDERS * left, _cost(orders))
    *held, noted = excerpts([*wanted, _noted_beside(before)], round(left - share))
    quotes = dict(zip(wanted, held, strict=True))
    unquoted = _unquoted(held.count(""), "user")
    quotes.setdefault(newest, newest)
    ends = {first: "First", newest: "Newest"}
    goal = [f"{which} request of the user, verbatim:\n{quotes[text]}" for text, which in ends.items() if quotes[text]]
    between = [f"User: {quotes[text]}" for text in reversed(older) if text != first and quotes[text]]
    told = _followed(orders, round(min(2 * ORDERS * left, max(share, left - _cost([*held, noted])))))
    notes = [f"Noted by the user's program, at the beginning: {noted}"] if noted else []
    return goal, between + unquoted + told + notes


def _followed(orders: Sequence[str], budget: int) -> list[str]:
    """Return what is quoted of ``orders`` of the program, the newest first, as they were told; all are laws."""
    quotes = excerpts(orders, budget, laws=range(len(orders)))
    told = [f"Told by the user's program: {quote}" for quote in reversed(quotes) if quote]
    return told + _unquoted(quotes.count(""), "user's program")


def _cost(texts: Sequence[str]) -> int:
    """Return about how many tokens the quotes of ``texts`` are."""
    return sum(count(text) + FRAME for text in texts if text)


def _told_by_program(messages: Sequence[Message]) -> list[str]:
    """Return what system messages say that stand among ``messages``, the newest first, each once."""
    said = (message.text for message in reversed(messages) if message.role == "system")
    return list(dict.fromkeys(filter(None, map(str.strip, said))))


def _noted_beside(texts: Sequence[str]) -> str:
    """Return what a client noted beside the words of the first of ``texts``."""
    own, notes = apart(texts[0]) if texts else ("", "")
    return notes if own else ""


def _unquoted(number: int, whose: str) -> list[str]:
    """Return the line that tells how many messages are not quoted, if any is not."""
    told = f"{number} more messages of the {whose} are" if number > 1 else f"1 more message of the {whose} is"
    return [f"[{told} not quoted here; recall reads them back]"] if number else []


def excerpts(texts: Sequence[str], budget: int, each: float = EACH, laws: Container[int] = ()) -> list[str]:
    """Return what is quoted of each of ``texts``, the most wanted first; nothing of those that find no room.

    ``each`` is the share that one has before others had their turn. Of the texts numbered ``laws`` all sounds like a
    rule. A rule has its place once, however often it is said: pasted lines are.
    """
    pieces = [_pieces(text, REACH * budget) for text in texts]
    chosen, left = set[Place](), float(budget)
    rules = _rules(pieces, laws)
    for places, share, most in ((rules, RULES, inf), (_places(pieces), 1.0, each), (_places(pieces), 1.0, inf)):
        left -= _take(places, pieces, chosen, left - (1 - share) * budget, most * budget)
    return [_quoted(own, [(number, at) in chosen for at in range(len(own))]) for number, own in enumerate(pieces)]


def _pieces(text: str, reach: int) -> Pieces:
    """Return the pieces of ``text``; of a long one those near its ends, with an empty one between."""
    if len(text) <= 2 * reach:
        return _PIECE.findall(text)
    return [*_PIECE.findall(text[:reach]), "", *_PIECE.findall(text[-reach:])]


def _places(pieces: Sequence[Pieces]) -> Iterator[Place]:
    """Yield where the pieces of each message are, its end first: what is asked stands behind what it is about."""
    for number, own in enumerate(pieces):
        yield from ((number, at) for at in (-1 % len(own), *range(len(own) - 1)) if own[at]) if own else ()


def _rules(pieces: Sequence[Pieces], laws: Container[int]) -> Iterator[Place]:
    """Yield where what sounds like a rule is, as all does of the messages ``laws``; first what is wanted first."""
    said = set[str]()
    for number, at in _places(pieces):
        text = pieces[number][at]
        if (number in laws or _RULE.search(text)) and text.strip() not in said:
            said.add(text.strip())
            yield number, at


def _take(places: Iterator[Place], pieces: Sequence[Pieces], chosen: set[Place], budget: float, each: float) -> float:
    """Choose pieces at ``places`` while the budget lasts, of one message up to ``each``; return what they cost."""
    spent = 0.0
    for number, own in groupby(places, key=lambda place: place[0]):
        if spent + FRAME >= budget:
            break
        frame = 0.0 if any((number, at) in chosen for at in range(len(pieces[number]))) else float(FRAME)
        here = 0.0
        for place in own:
            cost = (0 if place in chosen else count(pieces[number][place[1]])) + (0 if here else frame)
            if spent + here + cost > budget or here + cost > each:
                break
            chosen.add(place)
            here += cost
        spent += here
    return spent


def _quoted(pieces: Pieces, is_chosen: Sequence[bool]) -> str:
    """Return the chosen pieces in their order, with a mark wherever some between them are not."""
    if not any(is_chosen):
        return ""
    runs = groupby(zip(pieces, is_chosen, strict=True), key=lambda one: one[1])
    return " ".join("".join(piece for piece, _ in run).strip() if here else GAP for here, run in runs)
