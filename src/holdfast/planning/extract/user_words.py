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
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.planning.extract.client_notes import split_client_notes
from holdfast.planning.extract.previous_summary import iter_user_texts

MIN_OLDER_TOKENS, OLDER_SHARE = 64, 0.5
"""[H] Estimator tokens for what the user said before the newest request, however long that is; or so much of the
budget, where that is more."""
QUOTE_OVERHEAD_TOKENS = 6
"""[H] Estimator tokens of what stands around the quotes of one message: who said it, marks, the end of a line."""
RULES_SHARE, MESSAGE_SHARE = 0.5, 1 / 3
"""[H] Shares of the budget: for all that sounds like a rule, and for one message, before others had their turn."""
PROGRAM_SHARE = 1 / 8
"""[H] Share of the budget for what the program told the model; twice that where the user leaves so much."""
END_CHARS_PER_TOKEN = 8
"""[H] Characters at each end of a long text that are looked at, for each token of the budget."""
OMISSION_MARK = "[…]"
"""Stands where words are left out."""
_SENTENCE_PIECE = re.compile(r".{1,200}?(?:[.!?]\s+|[。！？]\s*|\n\s*|\Z)|.{1,200}", re.DOTALL)
"""A sentence or a line with the blanks behind it; of one without end so much as may stand for itself."""
_RULE_WORDS = re.compile(
    r"\b(?:must|never|always|only|don'?t|do not|cannot|may not|should|avoid|keep|prefer|instead of|rather than|without|"
    r"make sure|be sure|from now on|important|remember|require[ds]?|forbidden|at (?:most|least)|no (?:more|longer))\b|"
    r"必须|不要|禁止|务必|优先|不能|只能|始终",
    re.IGNORECASE,
)
"""What a sentence has in it that lays something down."""

TextPieces: TypeAlias = Sequence[str]
PiecePosition: TypeAlias = tuple[int, int]
"""Which message, and which piece of it."""


def quote_user_messages(
    messages: Sequence[Message], budget: int, *, is_open: bool = True
) -> tuple[list[str], list[str]]:
    """Return the first and the newest request of the user, and what was said between, in about ``budget`` tokens.

    The newest is whole whatever it costs, if it ``is_open``: nothing newer is said behind what is quoted. Messages of
    which nothing stays are counted in a line at the end. Summaries of what came before are no words of the user, and
    what a client noted beside older ones is not quoted, but for the first, whose notes come last. What the program told
    the model in between has a small share.
    """
    *before, newest = list(iter_user_texts(messages, with_attachments=True)) or [""]
    requests = [split_client_notes(text)[0] or text for text in before]
    first = requests[0] if requests else newest
    older = [text for text in dict.fromkeys([first, *reversed(requests)]) if text != newest]
    candidates, spent = (older, estimate_text_tokens(newest)) if is_open or not newest else ([newest, *older], 0)
    remaining, orders = (
        max(MIN_OLDER_TOKENS, round(OLDER_SHARE * budget), budget - spent),
        _list_program_messages(messages),
    )
    share = min(PROGRAM_SHARE * remaining, _estimate_quote_tokens(orders))
    *quoted_texts, note = select_excerpts([*candidates, _get_first_client_notes(before)], round(remaining - share))
    quotes = dict(zip(candidates, quoted_texts, strict=True))
    omission_lines = _format_unquoted_count(quoted_texts.count(""), "user")
    quotes.setdefault(newest, newest)
    ends = {first: "First", newest: "Newest"}
    goal = [f"{label} request of the user, verbatim:\n{quotes[text]}" for text, label in ends.items() if quotes[text]]
    between = [f"User: {quotes[text]}" for text in reversed(older) if text != first and quotes[text]]
    program_lines = _quote_program_messages(
        orders,
        round(
            min(2 * PROGRAM_SHARE * remaining, max(share, remaining - _estimate_quote_tokens([*quoted_texts, note])))
        ),
    )
    notes = [f"Noted by the user's program, at the beginning: {note}"] if note else []
    return goal, between + omission_lines + program_lines + notes


def _quote_program_messages(orders: Sequence[str], budget: int) -> list[str]:
    """Return what is quoted of ``orders`` of the program, the newest first, as they were told; all are laws."""
    quotes = select_excerpts(orders, budget, rule_texts=range(len(orders)))
    quote_lines = [f"Told by the user's program: {quote}" for quote in reversed(quotes) if quote]
    return quote_lines + _format_unquoted_count(quotes.count(""), "user's program")


def _estimate_quote_tokens(texts: Sequence[str]) -> int:
    """Return about how many tokens the quotes of ``texts`` are."""
    return sum(estimate_text_tokens(text) + QUOTE_OVERHEAD_TOKENS for text in texts if text)


def _list_program_messages(messages: Sequence[Message]) -> list[str]:
    """Return what system messages say that stand among ``messages``, the newest first, each once."""
    texts = (message.text for message in reversed(messages) if message.role == "system")
    return list(dict.fromkeys(filter(None, map(str.strip, texts))))


def _get_first_client_notes(texts: Sequence[str]) -> str:
    """Return what a client noted beside the words of the first of ``texts``."""
    own, notes = split_client_notes(texts[0]) if texts else ("", "")
    return notes if own else ""


def _format_unquoted_count(number: int, source: str) -> list[str]:
    """Return the line that tells how many messages are not quoted, if any is not."""
    subject = f"{number} more messages of the {source} are" if number > 1 else f"1 more message of the {source} is"
    return [f"[{subject} not quoted here; recall reads them back]"] if number else []


def select_excerpts(
    texts: Sequence[str], budget: int, message_share: float = MESSAGE_SHARE, rule_texts: Container[int] = ()
) -> list[str]:
    """Return what is quoted of each of ``texts``, the most wanted first; nothing of those that find no room.

    ``message_share`` is the share that one has before others had their turn. Of the texts numbered ``rule_texts`` all
    sounds like a rule. A rule has its place once, however often it is said: pasted lines are.
    """
    pieces = [_split_into_pieces(text, END_CHARS_PER_TOKEN * budget) for text in texts]
    chosen, remaining = set[PiecePosition](), float(budget)
    rules = _find_rule_pieces(pieces, rule_texts)
    for places, share, share_limit in (
        (rules, RULES_SHARE, inf),
        (_order_pieces(pieces), 1.0, message_share),
        (_order_pieces(pieces), 1.0, inf),
    ):
        remaining -= _choose_pieces(places, pieces, chosen, remaining - (1 - share) * budget, share_limit * budget)
    return [
        _join_chosen_pieces(own, [(number, at) in chosen for at in range(len(own))])
        for number, own in enumerate(pieces)
    ]


def _split_into_pieces(text: str, reach: int) -> TextPieces:
    """Return the pieces of ``text``; of a long one those near its ends, with an empty one between."""
    if len(text) <= 2 * reach:
        return _SENTENCE_PIECE.findall(text)
    return [*_SENTENCE_PIECE.findall(text[:reach]), "", *_SENTENCE_PIECE.findall(text[-reach:])]


def _order_pieces(pieces: Sequence[TextPieces]) -> Iterator[PiecePosition]:
    """Yield where the pieces of each message are, its end first: what is asked stands behind what it is about."""
    for number, own in enumerate(pieces):
        yield from ((number, at) for at in (-1 % len(own), *range(len(own) - 1)) if own[at]) if own else ()


def _find_rule_pieces(pieces: Sequence[TextPieces], rule_texts: Container[int]) -> Iterator[PiecePosition]:
    """Yield where what sounds like a rule is, as all does of the messages ``rule_texts``; first what is wanted
    first.
    """
    unique_texts = set[str]()
    for number, at in _order_pieces(pieces):
        text = pieces[number][at]
        if (number in rule_texts or _RULE_WORDS.search(text)) and text.strip() not in unique_texts:
            unique_texts.add(text.strip())
            yield number, at


def _choose_pieces(
    places: Iterator[PiecePosition],
    pieces: Sequence[TextPieces],
    chosen: set[PiecePosition],
    budget: float,
    max_tokens: float,
) -> float:
    """Choose pieces at ``places`` while the budget lasts, of one message up to ``max_tokens``; return what they
    cost.
    """
    spent = 0.0
    for number, own in groupby(places, key=lambda place: place[0]):
        if spent + QUOTE_OVERHEAD_TOKENS >= budget:
            break
        frame = (
            0.0 if any((number, at) in chosen for at in range(len(pieces[number]))) else float(QUOTE_OVERHEAD_TOKENS)
        )
        here = 0.0
        for place in own:
            cost = (0 if place in chosen else estimate_text_tokens(pieces[number][place[1]])) + (0 if here else frame)
            if spent + here + cost > budget or here + cost > max_tokens:
                break
            chosen.add(place)
            here += cost
        spent += here
    return spent


def _join_chosen_pieces(pieces: TextPieces, is_chosen: Sequence[bool]) -> str:
    """Return the chosen pieces in their order, with a mark wherever some between them are not."""
    if not any(is_chosen):
        return ""
    runs = groupby(zip(pieces, is_chosen, strict=True), key=lambda pair: pair[1])
    return " ".join("".join(piece for piece, _ in run).strip() if here else OMISSION_MARK for here, run in runs)
