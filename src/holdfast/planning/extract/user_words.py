"""Quote the user's words in an extract: the request under way whole, then as much of the rest as the budget takes.

Messages that do not fit are shortened sentence by sentence. Sentences that sound like a rule stay longest, wherever
they were said, because rules are what a long session must not forget; then come the newest request, the first one, and
the latest messages.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple, TypeAlias

from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_line_tokens, estimate_text_tokens
from holdfast.planning.extract.client_notes import split_client_notes
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.extract.previous_summary import iter_user_texts
from holdfast.planning.extract.rule_changes import RuleChanges, find_rule_changes
from holdfast.planning.extract.user_sentences import (
    Sentence,
    SentenceKind,
    is_typed_text,
    split_long_text,
    split_plain_text,
)

MIN_OLDER_TOKENS, OLDER_SHARE = 64, 0.5
"""Estimator tokens, or share of the budget if that is more, for what the user said before the newest request. They are
spent even beyond the budget: a long newest request is quoted whole, and that must not displace the rules that the user
gave before it. Chosen by judgement."""
QUOTE_OVERHEAD_TOKENS = 6
"""Estimator tokens around the quotes of one message: the speaker, omission marks, the line end. Chosen by judgement."""
RULES_SHARE, LASTING_SHARE, MESSAGE_SHARE = 0.8, 0.8, 1 / 3
"""Shares of the budget: for all sentences that sound like a rule, for these and all others that last, and for one
message until the others had their turn. The first two leave room for words other than rules: of .5, .6, .65, .7 and .8
the last alone kept every statement of compaction-conformance-kit, and recall over replayed sessions differed by at most
.0004. The third keeps one long message from being all that is quoted; chosen by judgement."""
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
MAX_LISTED_HANDLES, HANDLES_SHARE, HANDLE_TOKENS = 60, 0.5, 9
"""Handles of stored messages that are listed at most, the share of the budget that they may take, and the estimator
tokens of one. Messages that the model has not seen are the newest, and nobody sends sixty before an answer. Chosen by
judgement."""
OMISSION_MARK = "[…]"
"""Stands where words are left out."""

# Where a stub tells how its text is read back.
_RECALL_HANDLE = re.compile(rf'recall\(id="(\w{{{HANDLE_CHARS}}})"')

TextPieces: TypeAlias = Sequence[Sentence]
"""One text cut into sentences, in order."""
REVOKED_SENTENCE = Sentence("", SentenceKind.GAP)
"""Stands for a sentence that is no longer in force; like a gap it is never chosen."""


class PiecePosition(NamedTuple):
    """A piece of one of several texts."""

    text_index: int
    piece_index: int


def quote_user_messages(
    messages: Sequence[Message],
    budget: int,
    *,
    max_tokens: int = 0,
    is_open: bool = True,
    later_messages: Sequence[Message] = (),
    quoted_count: int = 0,
) -> tuple[list[str], list[str]]:
    """Quote the user in about ``budget`` estimator tokens, or in ``max_tokens`` if that is more.

    A long newest request takes its tokens from both, but ``OLDER_SHARE`` of ``budget`` stays for the other messages.

    Return two lists: the first and the newest request, and everything between them in its order. The newest request is
    quoted whole, whatever it costs, if it ``is_open``, that is if no newer message of the user stays visible after the
    extract. Messages that are not quoted at all are counted in a line. Summaries written by a client are not the user's
    words; notes of a client are quoted only if they stand in the first message, and come last. System messages inside
    the conversation get a small share of the budget.

    Rules that the user took back or replaced are not quoted, also if that was said in ``later_messages``, which stay
    visible after the extract. The first ``quoted_count`` messages are quotes of an earlier extract, which was made in
    the same way.
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

    # Handles are named outside of the quotes. Where there are many, they leave less room for these.
    max_handles = min(MAX_LISTED_HANDLES, round(HANDLES_SHARE * remaining / HANDLE_TOKENS))
    handle_count = sum(len(_RECALL_HANDLE.findall(text)) for text in candidates)
    remaining -= HANDLE_TOKENS * min(max_handles, handle_count)

    program_texts = _list_program_messages(messages)
    reserved_for_program = min(PROGRAM_SHARE * remaining, _estimate_quote_tokens(program_texts))
    quoted_texts = sum(1 for _ in iter_user_texts(messages[:quoted_count], with_attachments=True))
    rule_changes = find_rule_changes([*requests, newest, *iter_user_texts(later_messages)], quoted_texts)
    first_notes = _get_first_client_notes(earlier_texts)
    *excerpts, note = _select_user_excerpts(
        candidates, first_notes, round(remaining - reserved_for_program), rule_changes
    )
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
    lines += _format_unquoted_note(candidates, excerpts, "user", max_handles)
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
    return lines + _format_unquoted_note(program_texts, excerpts, "user's program", max_handles=0)


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


def _format_unquoted_note(texts: Sequence[str], excerpts: Sequence[str], source: str, max_handles: int) -> list[str]:
    """Return a line about what ``excerpts`` leave out of the messages of ``source``, or no line if there is nothing.

    It counts the messages without an excerpt, and names up to ``max_handles`` handles of stored texts that no excerpt
    names, those of the newest messages first, so that each can be read back by itself: the model may not have seen a
    message yet that a compaction leaves out.
    """
    unquoted_count = 0
    handles: dict[str, None] = {}
    for text, excerpt in zip(texts, excerpts, strict=True):
        unquoted_count += not excerpt
        for handle in _RECALL_HANDLE.findall(text):
            if handle not in excerpt and len(handles) < max_handles:
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
    pieces_by_text: list[TextPieces] = []
    for text_index, text in enumerate(texts):
        pieces = split_plain_text(text, END_CHARS_PER_TOKEN * budget)
        if text_index in rule_texts:
            pieces = tuple(Sentence(piece.text, SentenceKind.RULE) for piece in pieces if piece.text)
        pieces_by_text.append(pieces)
    return _select_excerpts_of_pieces(pieces_by_text, budget, message_share)


def _select_user_excerpts(texts: Sequence[str], notes: str, budget: int, rule_changes: RuleChanges) -> list[str]:
    """Return an excerpt of each of ``texts``, the most important first, and of ``notes``, which no user wrote."""
    reach = END_CHARS_PER_TOKEN * budget
    pieces_by_text: list[TextPieces] = []
    for text in texts:
        pieces = split_long_text(text, reach)
        revoked, changing = rule_changes.revoked.get(text, ()), rule_changes.changing.get(text, ())
        if revoked or changing:
            pieces = tuple(_judge_piece(piece, revoked, changing) for piece in pieces)
        pieces_by_text.append(pieces)
    return _select_excerpts_of_pieces([*pieces_by_text, split_plain_text(notes, reach)], budget, MESSAGE_SHARE)


def _judge_piece(piece: Sentence, revoked: Container[str], changing: Container[str]) -> Sentence:
    """Return ``piece`` as it counts after the rules changed."""
    if piece.text in revoked:
        return REVOKED_SENTENCE
    if piece.text in changing and piece.kind <= SentenceKind.REQUEST:
        return Sentence(piece.text, SentenceKind.RULE, piece.belongs_to_previous)
    return piece


def _select_excerpts_of_pieces(pieces_by_text: Sequence[TextPieces], budget: int, message_share: float) -> list[str]:
    chosen: set[PiecePosition] = set()
    remaining = float(budget)

    # Four rounds: rules from all texts, within their share; statements, within the share of all that lasts; then each
    # text in turn, up to its share; then whatever still fits, again from the most important text on.
    all_positions = list(_order_pieces(pieces_by_text))
    rules = _find_lasting_pieces(pieces_by_text, all_positions, SentenceKind.RULE)
    remaining -= _choose_pieces(rules, pieces_by_text, chosen, remaining - (1 - RULES_SHARE) * budget, inf)
    statements = _find_lasting_pieces(pieces_by_text, all_positions, SentenceKind.STATEMENT)
    remaining -= _choose_pieces(statements, pieces_by_text, chosen, remaining - (1 - LASTING_SHARE) * budget, inf)
    for max_tokens in (message_share * budget, inf):
        remaining -= _choose_pieces(all_positions, pieces_by_text, chosen, remaining, max_tokens)

    excerpts: list[str] = []
    for text_index, pieces in enumerate(pieces_by_text):
        is_chosen = [PiecePosition(text_index, index) in chosen for index in range(len(pieces))]
        excerpts.append(_join_chosen_pieces([piece.text for piece in pieces], is_chosen))
    return excerpts


def _order_pieces(pieces_by_text: Sequence[TextPieces]) -> Iterator[PiecePosition]:
    """Yield the positions of all pieces that may be quoted, text by text, the last piece of each text first.

    People paste a file and ask their question after it, so the end of a message says what is wanted. What is pasted
    comes after all else of its text, and behind the lines by which it is seen to be pasted.
    """
    for text_index, pieces in enumerate(pieces_by_text):
        by_kind: dict[int, list[int]] = {}
        for piece_index, piece in enumerate(pieces):
            if piece.text:
                by_kind.setdefault(max(piece.kind, SentenceKind.REQUEST), []).append(piece_index)
        own = by_kind.get(SentenceKind.REQUEST, [])
        frames, pasted = by_kind.get(SentenceKind.PASTE_FRAME, []), by_kind.get(SentenceKind.PASTED, [])
        for piece_index in (*own[-1:], *own[:-1], *frames, *pasted):
            yield PiecePosition(text_index, piece_index)


def _find_lasting_pieces(
    pieces_by_text: Sequence[TextPieces], positions: Iterable[PiecePosition], kind: SentenceKind
) -> Iterator[PiecePosition]:
    """Yield those of ``positions`` that hold distinct pieces of ``kind``, each after the one that it depends on.

    Of a text that is too long to be typed the statements are left out.
    """
    seen: set[str] = set()
    for text_index, text_positions in groupby(positions, key=lambda position: position.text_index):
        pieces = pieces_by_text[text_index]
        if kind == SentenceKind.STATEMENT and not is_typed_text(pieces):
            continue
        for position in text_positions:
            piece = pieces[position.piece_index]
            if piece.kind != kind:
                continue
            words = piece.text.strip()
            if words in seen:
                continue
            seen.add(words)
            if piece.belongs_to_previous and position.piece_index and pieces[position.piece_index - 1].text:
                yield PiecePosition(text_index, position.piece_index - 1)
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
    quoted_texts = {position.text_index for position in chosen}
    for text_index, text_positions in groupby(positions, key=lambda position: position.text_index):
        if spent + QUOTE_OVERHEAD_TOKENS >= budget:
            break
        overhead = 0.0 if text_index in quoted_texts else float(QUOTE_OVERHEAD_TOKENS)
        text_tokens = 0.0
        for position in text_positions:
            cost = 0.0
            if position not in chosen:
                cost = float(estimate_line_tokens(pieces_by_text[text_index][position.piece_index].text))
            if not text_tokens:  # the first piece of a text pays for the words around its quotes
                cost += overhead
            if spent + text_tokens + cost > budget or text_tokens + cost > max_text_tokens:
                break
            chosen.add(position)
            text_tokens += cost
        spent += text_tokens
    return spent


def _join_chosen_pieces(pieces: Sequence[str], is_chosen: Sequence[bool]) -> str:
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
