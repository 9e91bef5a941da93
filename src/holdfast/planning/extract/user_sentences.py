"""Cut the user's texts into sentences, and tell lasting ones from requests, questions and pasted text.

What lasts are rules and statements: they hold until the user says otherwise. Requests and questions were answered at
the time. Text that the user pasted (a file, a log, a mail) was written by somebody else: it gives no orders.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from holdfast.messages.text.memo import cache_by_text


class SentenceKind(IntEnum):
    """What a sentence of the user is, the most lasting first."""

    RULE = 0
    """Has a word of command."""
    STATEMENT = 1
    """Says how things are or are liked: a fact, a preference, a rule in soft wording."""
    REQUEST = 2
    """A request, a question, an acknowledgement, the report of a failure."""
    PASTE_FRAME = 3
    """The line that begins or ends a pasted text, by which a reader sees that it is pasted."""
    PASTED = 4
    """A line of a pasted text."""
    GAP = 5
    """An empty piece in place of text that was not read."""


class Sentence(Struct, frozen=True):
    """A sentence or line of a text of the user, with the white space after it."""

    text: str
    kind: SentenceKind
    belongs_to_previous: bool = False
    """Whether it says nothing without the sentence before it ("Let's not do that again.")."""


# A sentence or a line with the white space after it. Text without an end (base64, Chinese without punctuation) is cut
# every 200 characters, so that a piece is never too large to fit.
_SENTENCE_PIECE = re.compile(r".{1,200}?(?:[.!?]\s+|[。！？]\s*|\n\s*|\Z)|.{1,200}", re.DOTALL)

# Words by which a sentence is taken for a rule; a decision holds as long as one.
_RULE_WORDS = re.compile(
    r"\b(?:must|never|always|only|don'?t|do not|cannot|may not|should|avoid|keep|prefer|instead of|rather than|without|"
    r"make sure|be sure|from now on|important|remember|require[ds]?|forbidden|at (?:most|least)|no (?:more|longer)|"
    r"let'?s not|until|unless|not allowed|off limits)\b|"
    r"\b(?:decided|decision|agreed on|settled on|opted for|go(?:ing)? with)\b|"
    r"必须|不要|禁止|务必|优先|不能|只能|始终|不得|不许|不准|别再|一律|除非|之前先|决定|选定",
    re.IGNORECASE,
)
# "SAFETY RULE: …", "Note: …": a label says that its line is meant to last.
_LABEL = re.compile(
    r"\s*(?:[-*] )?(?:[A-Z][A-Z _-]{2,30}|Rule|Note|Fact|Goal|Policy|Convention|Preference|Decision|Correction|"
    r"(?:Quick )?[Uu]pdate): "
)
# Requests begin with one of these words, after words of politeness. Verbs that give a convention as often as a task
# ("use tabs", "answer in German") are not among them.
_REQUEST = re.compile(
    r"\s*(?:(?:ok(?:ay)?|good|great|nice|perfect|thanks?(?: you)?|cool|now|next|then|also|and|so|but|please|"
    r"first|again|yes|no|hi|hello|hey|(?:can|could|would|will) you|i(?:'d| would) like you to|i (?:want|need) you to|"
    r"let'?s|let us|we (?:should|need to)|you (?:can|could)|try to|go ahead and)[\s,.!:]+)*"
    r"(?:fix|add|look|check|find|run|test|implement|create|update|refactor|show|tell|explain|read|open|debug|see|"
    r"investigate|go|continue|proceed|try|build|commit|revert|undo|install|review|search|list|print|start|stop|begin|"
    r"finish|analy[sz]e|compare|describe|summari[sz]e|draft|plan|figure|do|get|give|help|clean|convert|extract|"
    r"generate|set|rewrite|rename|remove|delete|move|make|change|write|document|merge|deploy|push|implement|apply|"
    r"what|why|how|where|when|which|who|is|are|does|did|can|could|would|should|have|has|"
    r"ok|okay|yes|no|thanks|good|great|done|perfect|right)\b|"
    r"\s*(?:请|帮我|麻烦|再|先|然后|接着|现在|好的?[,，。]?)*"
    r"(?:看|修|加|写|运行|检查|继续|找|解释|查|测试|实现|重构|分析|说明|告诉|总结|添加|创建|修复)",
    re.IGNORECASE,
)
# "Looking at the cache now." says what goes on; "Pushing to main is fine." says what holds.
_PROGRESS = re.compile(r"\s*\w+ing\b(?!.*\b(?:is|are|has|have|needs?|goes|takes?|can|may|must)\b)", re.DOTALL)
_QUESTION_END = re.compile(r"[?？]\s*\Z")
_FAILURE = re.compile(
    r"\b(?:fails?|failed|failing|errors? out|crash\w*|broken|doesn'?t work|not work\w*|is slow|hangs?)\b|"
    r"报错|失败|崩溃",
    re.IGNORECASE,
)
# Without these words a sentence that is hardly longer says nothing of its own.
_BACKWARD_WORDS = re.compile(
    r"\b(?:that|this|it|them|those|these|they|so|such|one|here)\b|这种|这样|那样|此|它|这|那", re.IGNORECASE
)
_CONTENT_WORD = re.compile(r"[^\W\d_]{5,}|\w*\d\w*|[\u4e00-\u9fff]{2}")

_FENCE = re.compile(r"[ \t]*(?:```|~~~)")
_QUOTED_LINE = re.compile(r"[ \t]*>")
_TAG_LINE = re.compile(r"[ \t]*<([A-Za-z][\w-]*)(?:\s[^<>]*)?>[ \t]*$")
_CLOSING_TAG = re.compile(r"[ \t]*</([A-Za-z][\w-]*)>")
# "Here is docs/deploy.md:", "The log says:", "From the wiki:", and the same in Chinese; what follows, to the end of the
# message, is somebody else's. Rules that the user lists after "These are my rules:" name no source.
_SOURCE = (
    r"(?:file|log|output|mail|e-?mail|ticket|issue|wiki|page|readme|handbook|document|docs|thread|report|article|"
    r"[\w/-]+\.[a-z]{1,5})"
)
_PASTE_OPENING = re.compile(
    r"\b(?:here(?:'s| is| are)|from|contents? of|pasted?|says?|said|reads|wrote|prints?|shows?|attached|see|below)\b.*?"
    rf"\b(?:{_SOURCE}|message|error|trace\w*|changelog|diff|response)\b|"
    rf"\b{_SOURCE}\b.*?\b(?:says?|said|reads|prints?|shows?|contains?|states?)\b|"
    r"(?:文件|日志|输出|邮件|文档|页面|内容)",
    re.IGNORECASE,
)
_PASTE_OPENING_END = re.compile(r"[:：][ \t]*\Z")
MAX_OPENING_CHARS = 200
"""Characters of a line up to which it may announce a pasted text; a longer one says more than that. Chosen by
judgement."""
MAX_TYPED_CHARS = 1_500
"""Characters of the user's own words in one text above which it is a document: its statements are too many for each to
be worth keeping. Chosen by judgement."""
MIN_PASTED_LINES = 2
"""Lines after which a text behind an opening is taken for pasted: one line may well be the user's own. Chosen by
judgement."""


def estimate_sentence_memory(sentences: tuple[Sentence, ...]) -> int:
    """Estimate the bytes that ``sentences`` take in memory."""
    return sum(120 + len(sentence.text) for sentence in sentences)


@cache_by_text(estimate_sentence_memory)
def split_into_sentences(text: str) -> tuple[Sentence, ...]:
    """Cut ``text`` into sentences; joined they are the text again."""
    sentences: list[Sentence] = []
    for lines, is_pasted in _split_at_pastes(text):
        if is_pasted:
            sentences += _split_paste(lines)
        else:
            for piece in _SENTENCE_PIECE.findall(lines):
                kind = _classify_sentence(piece)
                is_first = not sentences or "\n\n" in sentences[-1].text
                depends = kind < SentenceKind.REQUEST and not is_first and _depends_on_previous(piece)
                sentences.append(Sentence(piece, kind, depends))
    return tuple(sentences)


def is_typed_text(sentences: Sequence[Sentence]) -> bool:
    """Return whether the user's own words in a text are as few as somebody types."""
    return sum(len(sentence.text) for sentence in sentences if sentence.kind <= SentenceKind.REQUEST) <= MAX_TYPED_CHARS


def split_long_text(text: str, reach: int) -> tuple[Sentence, ...]:
    """Cut ``text`` into sentences; of a longer text only ``reach`` characters at each end, with a gap between.

    The gap is never chosen, so an omission mark appears in its place.
    """
    if len(text) <= 2 * reach:
        return split_into_sentences(text)
    gap = Sentence("", SentenceKind.GAP)
    return (*split_into_sentences(text[:reach]), gap, *split_into_sentences(text[-reach:]))


def split_plain_text(text: str, reach: int) -> tuple[Sentence, ...]:
    """Cut a text that no user wrote like ``split_long_text``; its sentences are rules by their words, or requests."""
    ends = [text] if len(text) <= 2 * reach else [text[:reach], "", text[-reach:]]
    sentences: list[Sentence] = []
    for end in ends:
        if not end and text:
            sentences.append(Sentence("", SentenceKind.GAP))
        for piece in _SENTENCE_PIECE.findall(end):
            is_rule = _RULE_WORDS.search(piece) is not None
            sentences.append(Sentence(piece, SentenceKind.RULE if is_rule else SentenceKind.REQUEST))
    return tuple(sentences)


def has_rule_words(text: str) -> bool:
    """Return whether ``text`` has a word by which a sentence is taken for a rule or a decision ("never", "must")."""
    return _RULE_WORDS.search(text) is not None


def _classify_sentence(piece: str) -> SentenceKind:
    if _RULE_WORDS.search(piece) or _LABEL.match(piece):
        return SentenceKind.RULE
    if _QUESTION_END.search(piece) or _FAILURE.search(piece):
        return SentenceKind.REQUEST
    if _REQUEST.match(piece) or _PROGRESS.match(piece):
        return SentenceKind.REQUEST
    has_words = len(_CONTENT_WORD.findall(piece)) >= 1 and len(piece.strip()) >= 6
    return SentenceKind.STATEMENT if has_words else SentenceKind.REQUEST


def _depends_on_previous(piece: str) -> bool:
    return _BACKWARD_WORDS.search(piece) is not None and len(_CONTENT_WORD.findall(piece)) <= 3


# -- pasted text -------------------------------------------------------------------------------------------------------


def _split_at_pastes(text: str) -> Iterator[tuple[str, bool]]:
    """Yield runs of lines of ``text``, each with whether it is pasted."""
    lines = text.splitlines(keepends=True)
    closing_lines = _find_closing_lines(lines)
    start = number = 0
    while number < len(lines):
        stop = _find_paste_end(lines, number, closing_lines)
        if stop > number:
            if number > start:
                yield "".join(lines[start:number]), False
            yield "".join(lines[number:stop]), True
            start = number = stop
        else:
            number += 1
    if start < len(lines):
        yield "".join(lines[start:]), False


def _find_closing_lines(lines: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the lines that begin with a closing tag, by the name of the tag."""
    closing_lines: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if tag := _CLOSING_TAG.match(line):
            closing_lines.setdefault(tag[1], []).append(number)
    return closing_lines


def _find_paste_end(lines: Sequence[str], number: int, closing_lines: Mapping[str, Sequence[int]]) -> int:
    """Return the number of the line after the paste that begins at line ``number``; the same number if none does."""
    line = lines[number].rstrip("\n")
    if _FENCE.match(line):
        return _find_fence_end(lines, number + 1)
    if _QUOTED_LINE.match(line):
        stop = number
        while stop < len(lines) and _QUOTED_LINE.match(lines[stop]):
            stop += 1
        return stop
    if tag := _TAG_LINE.match(line):
        closings = closing_lines.get(tag[1], ())
        index = bisect_right(closings, number)
        return closings[index] + 1 if index < len(closings) else number
    if _is_paste_opening(line) and _has_lines(lines, number + 1, MIN_PASTED_LINES):
        return len(lines)
    return number


def _is_paste_opening(line: str) -> bool:
    if len(line) > MAX_OPENING_CHARS or not _PASTE_OPENING_END.search(line):
        return False
    return _PASTE_OPENING.search(line) is not None


def _find_fence_end(lines: Sequence[str], start: int) -> int:
    """Return the number after the first line from ``start`` on that is a fence, or after the last line."""
    for number in range(start, len(lines)):
        if _FENCE.match(lines[number]):
            return number + 1
    return len(lines)


def _has_lines(lines: Sequence[str], start: int, least: int) -> bool:
    """Return whether ``least`` lines from ``start`` on are not blank."""
    found = 0
    for number in range(start, len(lines)):
        found += not lines[number].isspace()
        if found >= least:
            return True
    return False


def _split_paste(block: str) -> Iterator[Sentence]:
    lines = block.splitlines(keepends=True)
    closes = len(lines) > 1 and (_FENCE.match(lines[-1]) or lines[-1].lstrip().startswith("</"))
    last = len(lines) - 1 if closes else len(lines)
    for number, line in enumerate(lines):
        kind = SentenceKind.PASTE_FRAME if number in {0, last} else SentenceKind.PASTED
        for piece in _SENTENCE_PIECE.findall(line):
            yield Sentence(piece, kind)
