"""Quote the user's words in an extract: the request under way whole, then as much of the rest as the budget takes.

Messages that do not fit are shortened sentence by sentence. Sentences that sound like a rule stay longest, wherever
they were said, because rules are what a long session must not forget; then come the newest request, the first one, and
the latest messages.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from math import inf
from typing import NamedTuple, TypeAlias

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import MAX_CACHED_LINE_CHARS, estimate_line_tokens, estimate_text_tokens
from holdfast.planning.extract.client_notes import split_client_notes
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.extract.previous_summary import iter_user_texts

MIN_OLDER_TOKENS, OLDER_SHARE = 64, 0.5
"""Estimator tokens, or share of the budget if that is more, for what the user said before the newest request. They are
spent even beyond the budget: a long newest request is quoted whole, and that must not displace the rules that the user
gave before it. Chosen by judgement."""
QUOTE_OVERHEAD_TOKENS = 6
"""Estimator tokens around the quotes of one message: the speaker, omission marks, the line end. Chosen by judgement."""
RULES_SHARE, MESSAGE_SHARE = 0.5, 1 / 3
"""Shares of the budget: for all sentences that sound like a rule, and for one message until the others had their turn.
The first leaves room for words other than rules, the second keeps one long message from being all that is quoted.
Chosen by judgement."""
PROGRAM_SHARE = 1 / 8
"""Share of the budget for system messages inside the conversation; up to twice that if the user's words leave it
unused. Small, because long instructions of a program must not displace the user's words. Chosen by judgement."""
GROWN_SHARE_FACTOR, MAX_GROWN_SHARE = 2.0, 0.8
"""The user's words may take this many times their share of the summarized text, and at most that share of the extract.
A conversation that is mostly the user's is kept mostly in the user's words; in an agent's session they are a few
percent, so nothing grows. Chosen by judgement."""
END_CHARS_PER_TOKEN = 8
"""Characters read at each end of a long text for each token of the budget: about twice what the budget could quote, so
that a megabyte without line ends costs no more than its ends. Chosen by judgement."""
MAX_LISTED_HANDLES = 60
"""Handles of stored messages that are listed at most, some 500 tokens. Messages that the model has not seen are the
newest, and nobody sends that many before an answer. Chosen by judgement."""
OMISSION_MARK = "[…]"
"""Stands where words are left out."""

# A sentence or a line with the white space after it. Text without an end (base64, Chinese without punctuation) is cut
# every 200 characters, so that a piece is never too large to fit.
_SENTENCE_PIECE = re.compile(r".{1,200}?(?:[.!?]\s+|[。！？]\s*|\n\s*|\Z)|.{1,200}", re.DOTALL)

# Words by which a sentence is taken for a rule.
_RULE_WORDS = re.compile(
    r"\b(?:must|never|always|only|don'?t|do not|cannot|may not|should|avoid|keep|prefer|instead of|rather than|without|"
    r"make sure|be sure|from now on|important|remember|require[ds]?|forbidden|at (?:most|least)|no (?:more|longer))\b|"
    r"必须|不要|禁止|务必|优先|不能|只能|始终",
    re.IGNORECASE,
)

# Where a stub tells how its text is read back.
_RECALL_HANDLE = re.compile(rf'recall\(id="(\w{{{HANDLE_CHARS}}})"')

_CACHED_PIECES = 1 << 13
"""Sentences whose kind is remembered, some megabytes: each compaction looks at all that the user said."""


def _has_rule_words(piece: str) -> bool:
    if len(piece) > MAX_CACHED_LINE_CHARS:
        return _RULE_WORDS.search(piece) is not None
    return _has_short_rule(piece)


@lru_cache(_CACHED_PIECES)
def _has_short_rule(piece: str) -> bool:
    return _RULE_WORDS.search(piece) is not None


TextPieces: TypeAlias = Sequence[str]
"""One text cut into sentences, in order; joined they are the text again."""


class PiecePosition(NamedTuple):
    """A piece of one of several texts."""

    text_index: int
    piece_index: int


def quote_user_messages(
    messages: Sequence[Message], budget: int, *, max_tokens: int = 0, is_open: bool = True
) -> tuple[list[str], list[str]]:
    """Quote the user in about ``budget`` estimator tokens, or in ``max_tokens`` if that is more.

    A long newest request takes its tokens from both, but ``OLDER_SHARE`` of ``budget`` stays for the other messages.

    Return two lists: the first and the newest request, and everything between them in its order. The newest request is
    quoted whole, whatever it costs, if it ``is_open``, that is if no newer message of the user stays visible after the
    extract. Messages that are not quoted at all are counted in a line. Summaries written by a client are not the user's
    words; notes of a client are quoted only if they stand in the first message, and come last. System messages inside
    the conversation get a small share of the budget.
    """
    *earlier_texts, newest = list(iter_user_texts(messages, with_attachments=True)) or [""]
    requests = [split_client_notes(text).own_words or text for text in earlier_texts]
    first = requests[0] if requests else newest
    older = [text for text in dict.fromkeys([first, *reversed(requests)]) if text != newest]

    if is_open or not newest:
        candidates = older
        newest_tokens = estimate_text_tokens(newest)
    else:  # a newer request is visible in the tail: this one competes for the budget with the others, as the first
        candidates = [newest, *older]
        newest_tokens = 0
    remaining = max(
        MIN_OLDER_TOKENS,
        round(OLDER_SHARE * budget),
        max(budget, max_tokens) - newest_tokens,
    )

    program_texts = _list_program_messages(messages)
    reserved_for_program = min(PROGRAM_SHARE * remaining, _estimate_quote_tokens(program_texts))
    quoted_texts = [*candidates, _get_first_client_notes(earlier_texts)]
    *excerpts, note = select_excerpts(quoted_texts, round(remaining - reserved_for_program))
    # The program's share grows up to twice its size with what the user's words left unused.
    left_over = remaining - _estimate_quote_tokens([*excerpts, note])
    program_tokens = min(2 * PROGRAM_SHARE * remaining, max(reserved_for_program, left_over))

    excerpt_by_text = dict(zip(candidates, excerpts, strict=True))
    excerpt_by_text.setdefault(newest, newest)
    goal: list[str] = []
    # A single request is both first and newest; as a dict key it appears once, with the later label.
    for text, label in {first: "First", newest: "Newest"}.items():
        if excerpt_by_text[text]:
            goal.append(f"{label} request of the user, verbatim:\n{excerpt_by_text[text]}")
    lines: list[str] = []
    for text in reversed(older):
        if text != first and excerpt_by_text[text]:
            lines.append(f"User: {excerpt_by_text[text]}")
    lines += _format_unquoted_note(candidates, excerpts, "user")
    lines += _quote_program_messages(program_texts, round(program_tokens))
    if note:
        lines.append(f"Noted by the user's program, at the beginning: {note}")
    return goal, lines


def compute_grown_share(messages: Sequence[Message], tokens: int) -> float:
    """Return the share of an extract up to which the user's words may grow: more, the more of ``tokens`` is theirs.

    ``tokens`` is the size of all ``messages`` (estimator tokens).
    """
    texts = dict.fromkeys(split_client_notes(text).own_words for text in iter_user_texts(messages))
    user_tokens = sum(map(estimate_text_tokens, texts))
    return min(MAX_GROWN_SHARE, GROWN_SHARE_FACTOR * user_tokens / max(1, tokens))


def _quote_program_messages(program_texts: Sequence[str], budget: int) -> list[str]:
    """Quote ``program_texts``, given newest first, in the order they were said.

    All of them count as rules: a program gives its orders without the words by which a user's rule is recognized.
    """
    excerpts = select_excerpts(program_texts, budget, rule_texts=range(len(program_texts)))
    lines = []
    for excerpt in reversed(excerpts):
        if excerpt:
            lines.append(f"Told by the user's program: {excerpt}")
    return lines + _format_unquoted_note(program_texts, excerpts, "user's program")


def _estimate_quote_tokens(texts: Iterable[str]) -> int:
    """Estimate the tokens of quoting all of ``texts``; empty ones cost nothing."""
    return sum(estimate_text_tokens(text) + QUOTE_OVERHEAD_TOKENS for text in texts if text)


def _list_program_messages(messages: Sequence[Message]) -> list[str]:
    """Return the distinct texts of the system messages in ``messages``, newest first."""
    texts: dict[str, None] = {}
    for message in reversed(messages):
        if message.role == "system" and (text := message.text.strip()):
            texts[text] = None
    return list(texts)


def _get_first_client_notes(texts: Sequence[str]) -> str:
    """Return the client's notes in the first of ``texts``, or an empty string if it holds no words of the user."""
    if not texts:
        return ""
    first = split_client_notes(texts[0])
    return first.notes if first.own_words else ""


def _format_unquoted_note(texts: Sequence[str], excerpts: Sequence[str], source: str) -> list[str]:
    """Return a line about what ``excerpts`` leave out of the messages of ``source``, or no line if there is nothing.

    It counts the messages without an excerpt, and names the handles of stored texts that no excerpt names, those of the
    newest messages first, so that each can be read back by itself: the model may not have seen a message yet that a
    compaction leaves out.
    """
    unquoted_count = 0
    handles: dict[str, None] = {}
    for text, excerpt in zip(texts, excerpts, strict=True):
        unquoted_count += not excerpt
        for handle in _RECALL_HANDLE.findall(text):
            if handle not in excerpt and len(handles) < MAX_LISTED_HANDLES:
                handles[handle] = None
    if not unquoted_count and not handles:
        return []
    if unquoted_count > 1:
        subject = f"{unquoted_count} more messages of the {source} are"
    elif unquoted_count:
        subject = f"1 more message of the {source} is"
    else:
        subject = f"parts of messages of the {source} are"
    listed_handles = f" by id: {', '.join(handles)}" if handles else ""
    return [f"[{subject} not quoted here; recall reads them back{listed_handles}]"]


def select_excerpts(
    texts: Sequence[str],
    budget: int,
    message_share: float = MESSAGE_SHARE,
    rule_texts: Container[int] = (),
) -> list[str]:
    """Return an excerpt of each of ``texts``, most important text first, in about ``budget`` estimator tokens together.

    Texts that do not fit get an empty excerpt. ``message_share`` is the share of the budget that one text may take
    until the others had their turn. Every sentence of the texts with indexes in ``rule_texts`` counts as a rule. A rule
    that is repeated word for word counts once: a pasted log repeats its warnings.
    """
    pieces_by_text = [_split_into_pieces(text, END_CHARS_PER_TOKEN * budget) for text in texts]
    chosen: set[PiecePosition] = set()
    remaining = float(budget)

    # Three rounds: rules from all texts, within their share; then each text in turn, up to its share; then whatever
    # still fits, again from the most important text on.
    rule_positions = _find_rule_pieces(pieces_by_text, rule_texts)
    kept_for_other_words = (1 - RULES_SHARE) * budget
    remaining -= _choose_pieces(
        rule_positions,
        pieces_by_text,
        chosen,
        remaining - kept_for_other_words,
        inf,
    )
    for max_tokens in (message_share * budget, inf):
        positions = _order_pieces(pieces_by_text)
        remaining -= _choose_pieces(
            positions,
            pieces_by_text,
            chosen,
            remaining,
            max_tokens,
        )

    excerpts: list[str] = []
    for text_index, pieces in enumerate(pieces_by_text):
        is_chosen = [PiecePosition(text_index, index) in chosen for index in range(len(pieces))]
        excerpts.append(_join_chosen_pieces(pieces, is_chosen))
    return excerpts


def _split_into_pieces(text: str, reach: int) -> TextPieces:
    """Cut ``text`` into sentences; of a longer text only ``reach`` characters at each end, with an empty piece between.

    The empty piece is never chosen, so an omission mark appears in its place.
    """
    if len(text) <= 2 * reach:
        return _SENTENCE_PIECE.findall(text)
    return [*_SENTENCE_PIECE.findall(text[:reach]), "", *_SENTENCE_PIECE.findall(text[-reach:])]


def _order_pieces(pieces_by_text: Sequence[TextPieces]) -> Iterator[PiecePosition]:
    """Yield the positions of all pieces that are not empty, text by text, the last piece of each text first.

    People paste a file and ask their question after it, so the end of a message says what is wanted.
    """
    for text_index, pieces in enumerate(pieces_by_text):
        if not pieces:
            continue
        last = len(pieces) - 1
        for piece_index in (last, *range(last)):
            if pieces[piece_index]:
                yield PiecePosition(text_index, piece_index)


def _find_rule_pieces(pieces_by_text: Sequence[TextPieces], rule_texts: Container[int]) -> Iterator[PiecePosition]:
    """Yield the positions of distinct rules, most important first: rule-like pieces, and all of ``rule_texts``."""
    seen_rules: set[str] = set()
    for position in _order_pieces(pieces_by_text):
        piece = pieces_by_text[position.text_index][position.piece_index]
        is_rule = position.text_index in rule_texts or _has_rule_words(piece)
        rule = piece.strip()
        if is_rule and rule not in seen_rules:
            seen_rules.add(rule)
            yield position


def _choose_pieces(
    positions: Iterable[PiecePosition],
    pieces_by_text: Sequence[TextPieces],
    chosen: set[PiecePosition],
    budget: float,
    max_text_tokens: float,
) -> float:
    """Add pieces to ``chosen`` in the order of ``positions`` while they fit; return the tokens they cost.

    A text stops at its first piece that exceeds the ``budget`` left or ``max_text_tokens``; the next text is tried
    then.
    """
    spent = 0.0
    for text_index, text_positions in groupby(positions, key=lambda position: position.text_index):
        if spent + QUOTE_OVERHEAD_TOKENS >= budget:
            break
        piece_count = len(pieces_by_text[text_index])
        is_already_quoted = any(PiecePosition(text_index, index) in chosen for index in range(piece_count))
        overhead = 0.0 if is_already_quoted else float(QUOTE_OVERHEAD_TOKENS)
        text_tokens = 0.0
        for position in text_positions:
            cost = 0.0
            if position not in chosen:
                cost = float(estimate_line_tokens(pieces_by_text[text_index][position.piece_index]))
            if not text_tokens:  # the first piece of a text pays for the words around its quotes
                cost += overhead
            if spent + text_tokens + cost > budget or text_tokens + cost > max_text_tokens:
                break
            chosen.add(position)
            text_tokens += cost
        spent += text_tokens
    return spent


def _join_chosen_pieces(pieces: TextPieces, is_chosen: Sequence[bool]) -> str:
    """Join the chosen pieces in order, with a mark for each run of others; return an empty string if none is chosen."""
    if not any(is_chosen):
        return ""
    words: list[str] = []
    for is_quoted, run in groupby(zip(pieces, is_chosen, strict=True), key=lambda pair: pair[1]):
        if is_quoted:
            words.append("".join(piece for piece, _ in run).strip())
        else:
            words.append(OMISSION_MARK)
    return " ".join(words)
