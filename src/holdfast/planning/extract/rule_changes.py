"""Find rules that the user took back, replaced, or tied to an end that has come.

A sentence that takes something back ("Forget the rule about uploads", "Use tabs instead", "Scratch that") is paired
with the earlier sentence that shares its content words, numbers and names. Only a confident pair counts: a lost rule is
worse than a stale one, so on doubt both are quoted. A rule that is said again after that is in force.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from holdfast.messages.text.memo import cache_by_text
from holdfast.planning.extract.user_sentences import Sentence, SentenceKind, split_into_sentences

MAX_READ_CHARS = 20_000
"""Characters of a text up to which its sentences are paired. A longer one is a document; what its author takes back in
it is not told from what he talks about. Chosen by judgement."""
MAX_JOINED_SENTENCES = 5
"""Sentences that are read as one because each says nothing without the one before it. More are no longer one thought,
and patterns that look across them would take long. Chosen by judgement."""
MAX_RULES_OF_A_WORD = 64
"""Rules that a word may stand in for them to be looked through for the one that a sentence ends: a word of more says
little of which one is meant, and looking through all would take long. Chosen by judgement."""
MIN_NAMED_SHARE = 0.5
"""Share of all content words of a sentence that ends a rule which that rule must hold if it holds one alone: "I moved
everything out of that directory" does not speak of a job that moved. Chosen by judgement."""
MIN_COVERED_SHARE, MIN_LEAD = 0.6, 1.5
"""Share of the known content words of a sentence that the rule must hold which it takes back: with less it speaks of
something else as well. And how many times the weight of the next best rule its words must have. Chosen by judgement."""

# Words that end a rule and name it as one: a single content word is then enough to pair them.
_EXPLICIT_END = re.compile(
    r"\b(?:forget|drop|ignore|disregard|scrap|scratch|skip|cancel|lift|remove|never mind|nevermind|revoke|withdraw)\b"
    r"[^.!?]*\b(?:rule|limit|cap|ban|restriction|requirement|convention|policy|constraint|prefix|format|what i said|"
    r"i (?:said|told|asked|gave)|thing (?:about|with))\b|"
    r"\b(?:rule|limit|cap|ban|restriction|requirement|convention|policy|constraint|freeze|budget|window|review)s?\b"
    r"[^.!?]*\b(?:no longer|not any ?more|is (?:gone|lifted|over|off|history|void|obsolete|dropped)|"
    r"does ?n[o']t apply|are (?:gone|lifted|over|off)|any ?more)\b|"
    r"\b(?:no longer (?:applies|apply|holds?|counts?|needed|required)|(?:do|does) ?n[o']t apply any ?more|"
    r"off the table|we dropped the|you no longer (?:need|have)|no longer need to|no need (?:to|for)\b[^.!?]*any ?more|"
    r"need ?n[o']t\b[^.!?]*any ?more)\b|"
    r"(?:忘掉|忘了|作废|取消|撤销|废除|解除|收回|失效)|不用再|不再需要|(?:规定|限制|要求|禁令|事|规则)[^。]*(?:算了|不用管|不算)",
    re.IGNORECASE,
)
# Words that may end a rule as well as a task: the sentences must have more in common.
_POSSIBLE_END = re.compile(
    r"\b(?:forget|drop|ignore|disregard|scrap|scratch|cancel|never mind|nevermind|no longer|not any ?more|"
    r"is (?:gone|over|off|history)|stopped)\b|算了|不用管|不用了|不再|不算",
    re.IGNORECASE,
)
# Words that put another rule in the place of an earlier one.
_REPLACEMENT = re.compile(
    r"\b(?:instead|from now on|from today|as of (?:today|now)|no longer|rather than|not what i said|make that|"
    r"change (?:the|it|that|this)|switch(?:ed)? to|moved|took over|takes over|raised|lowered|increased|reduced|"
    r"now|rotated|actually|correction|update)\b|"
    r"改成|改为|改用|换成|改由|从现在起|从今|以后|提高到|降到|调整为|更新",
    re.IGNORECASE,
)
# Words of an exception: the rule stays in force beside it.
_EXCEPTION = re.compile(
    r"\b(?:except\w*|unless|exempt|apart from|other than|besides|as well|too|also|the rest|all others|at any rate|"
    r"for now|for the moment|this time|just this once|today only|(?:does|do) not count|leaves out)\b|"
    r"\bonly (?:for|in|if|when)\b|"
    r"除非|除外|例外|不适用|不包括|其他的?照旧|也",
    re.IGNORECASE,
)
_QUESTION_OR_CONDITION = re.compile(
    r"[?？]\s*\Z|\b(?:if|once|when|whether|should we|shall we)\b|如果|要是|一旦", re.IGNORECASE
)
# "Scratch that." alone: what was said last is meant.
_LAST_ONE = re.compile(
    r"\s*(?:(?:no|actually|wait|oh|sorry|ok|okay|hm+|never ?mind)[\s,.!:-]+)*"
    r"(?:scratch|forget|strike|ignore|disregard)\s+(?:that|this|it|the last (?:one|bit|part|thing|message|rule)|"
    r"what i just (?:said|wrote))(?:\s+(?:last\s+)?(?:one|bit|part|rule))?\b|"
    r"\s*(?:刚才|上一条|前面)那?[^。]{0,6}(?:作废|不算|算了)",
    re.IGNORECASE,
)
_AGAIN = re.compile(r"\b(?:again|back|after all|once more|reinstat\w+|restor\w+)\b|恢复|还是|重新|又", re.IGNORECASE)
# "Until the audit is done", of which the event is read.
_OWN_END = re.compile(r"\b(?:until|till|while|as long as|before)\b([^,.;:!?]*)", re.IGNORECASE)
_HAN_OWN_END_WORD = re.compile("之前|以前|期间")
_HAN_OWN_END = re.compile("(?:在|等|直到)?([^,,。;]*?)(?:之前|以前|期间)")
_TERM_IS_OVER = re.compile(
    r"\b(?:is|are|has|have|was|were|been|got|we)\b[^.!?]*\b(?:out|done|over|finished|shipped|merged|released|signed|live|"
    r"back|complete[d]?|closed|landed|ended|gone|deployed|published|approved|passed)\b|已经|完成了|结束了|发布了|回来了",
    re.IGNORECASE,
)
_NOT_YET = re.compile(
    r"\b(?:not|n't|never|soon|tomorrow|will|almost|nearly|next)\b|n't\b|还没|没有|快要|即将", re.IGNORECASE
)
# Several orders in one sentence are not all taken back with one of them.
_CLAUSE = re.compile(
    r"[;；]|,\s*(?:and|but|also|nor)\b|\b(?:and|but) (?:never|always|do not|don't|only|must|use|keep)\b", re.IGNORECASE
)

_WORD = re.compile(r"[A-Za-z0-9][\w.:/@#-]*|[\u4e00-\u9fff]+")
_STOPWORDS = frozenset(
    """
    a about actually after again against all also always am an and another any anybody anymore anyone anything
    applies apply are as ask at back be because been before being both but by can can't cancel change changed
    changes come comes correction could did disregard do does doesn't don't done down drop each earlier either even
    ever every everybody everyone few first for forget from get gets go goes gone got had has have having he her
    here his how i i'm if ignore in instead into is isn't it it's its just keep keeps kept last least less let let's
    lets like likes limit limits longer made make makes many may me might mind mine more most much must my need
    needs neither never new next no nobody nor not nothing now of off ok okay old on one ones only or other others
    ought our out over own please put rather really rule rules said same say scrap scratch shall she should since
    skip so some somebody someone something still stuff such take takes than thanks that that's the their them then
    there these they thing things this those till to today told tomorrow too took under until up update us use used
    uses using very want wants was way we went were what when where which while who whom whose why will with without
    won't would yes yesterday you your
    """.split()  # noqa: SIM905 (a list would have a line for each word)
)
"""Words that say nothing of what a sentence is about, and the words by which rules are given and taken back."""
_HAN_STOP = re.compile(
    r"忘掉|忘了|那条|规定|限制|不用|取消|改成|改为|改用|换成|从现在起|从今|以后|不要|必须|禁止|务必|不能|只能|现在|原来|之前|这种|"
    r"以前|这个|那个|就行|可以|怎么|什么|时候|已经|还是|我们|大家|都|了|的|是|在|给|把|被|再|不|也|就|和|与|那|这|我|你|他|她|它|往|让"
)


class _Traits(Struct, frozen=True):
    """What a sentence is about."""

    terms: frozenset[str]
    values: frozenset[tuple[str, str]]
    """Its numbers, names and the like, each with its type."""


class _Sentence(Struct, frozen=True):
    """A sentence of the user with those that say nothing without it, and what its words alone tell about rules."""

    pieces: tuple[str, ...]
    traits: _Traits
    own_ends: tuple[_Traits, ...]
    """What is to happen until its rule ends ("until the release is out"); usually none."""
    can_be_ended: bool
    """Whether it is a rule or a statement that says more than that another one is over."""
    has_clauses: bool
    """Whether it gives several orders, which are not all taken back with one of them."""
    takes_back_last: bool
    """Whether it says "scratch that" of whatever was said last."""
    reports_end: bool
    is_exception: bool
    is_explicit_end: bool
    is_possible_end: bool
    is_replacement: bool
    is_again: bool

    @property
    def may_end_rules(self) -> bool:
        """Return whether it may say that a rule of the same subject is over or another one now."""
        is_end = self.is_explicit_end or self.is_possible_end or self.is_replacement
        return is_end and not self.is_exception


class _Match(NamedTuple):
    """The rule that a sentence is about."""

    number: int
    is_only_one: bool
    """Whether no other rule shares any word with the sentence."""
    shared: frozenset[str]


class RuleChanges(NamedTuple):
    """What became of the rules of a conversation: sentences, by the text in which they stand."""

    revoked: dict[str, set[str]]
    """Those that are no longer in force."""
    changing: dict[str, set[str]]
    """Those that say what is in force instead or besides, in whatever words: they are rules themselves."""


def find_rule_changes(texts: Sequence[str], quoted_count: int = 0) -> RuleChanges:
    """Return which sentences of the user are no longer in force, and which took their place or narrow them.

    ``texts`` are the user's, oldest first. A text that was sent twice is judged where it was sent last. The time grows
    with the number of sentences; what a sentence says is found out once.

    The first ``quoted_count`` texts are quotes of an earlier extract. What they end was left out when it was made, and
    the words around them are missing: "Scratch that" would now take back whatever happens to stand before it. So they
    end nothing, but newer texts may end them.
    """
    rules = _RulesInForce()
    for index, text in enumerate(texts):
        sentences = _read_sentences(text) if len(text) <= MAX_READ_CHARS else ()
        if index < quoted_count:
            rules.add_quoted_text(sentences)
        else:
            rules.add_text(sentences)

    last_index = {text: index for index, text in enumerate(texts)}
    changes = RuleChanges({}, {})
    for numbers, pieces_by_text in zip((rules.revoked, rules.changing), changes, strict=True):
        for text_index, pieces in rules.iter_pieces(numbers):
            text = texts[text_index]
            if last_index[text] == text_index:
                pieces_by_text.setdefault(text, set()).update(pieces)
    return changes


class _RulesInForce:
    """The sentences of a conversation, numbered in order, and which of them are still in force.

    They are found by the words they hold, so that a sentence is compared only with those it shares a word with.
    """

    def __init__(self) -> None:
        self._sentences: list[_Sentence] = []
        self._text_starts: list[int] = []
        """The number of the first sentence of each text."""
        self._quoted_count = 0
        """Sentences at the start that an earlier extract quotes."""
        self.revoked: set[int] = set()
        """The numbers of the sentences that are no longer in force."""
        self.changing: set[int] = set()
        """The numbers of the sentences that put something in the place of a rule, narrow it, or say it anew."""
        self._by_term: defaultdict[str, set[int]] = defaultdict(set)
        """The rules in force that hold a word."""
        self._by_end_term: defaultdict[str, set[int]] = defaultdict(set)
        """The rules, in force or not, that hold until something happens, by the words for it."""

    def add_quoted_text(self, sentences: Iterable[_Sentence]) -> None:
        """Read a quote of an earlier extract: its sentences are rules, and end none.

        One that puts a value in the place of another was taken for a rule when that stood before it, and still is one.
        """
        self._text_starts.append(len(self._sentences))
        for sentence in sentences:
            is_change = sentence.is_again or sentence.is_replacement or sentence.is_exception
            if is_change and sentence.traits.values:
                self.changing.add(len(self._sentences))
            self._add(sentence)
        self._quoted_count = len(self._sentences)

    def add_text(self, sentences: Iterable[_Sentence]) -> None:
        """Read the next text: its sentences may end rules before them, and are rules themselves."""
        self._text_starts.append(len(self._sentences))
        for sentence in sentences:
            # What is brought back with a sentence is not ended by it, so the ends are found first.
            ended = list(self._find_what_ends(sentence))
            is_said_anew = sentence.is_again and self._restore_rules(sentence)
            is_replacement = bool(ended) and sentence.is_replacement
            if is_said_anew or is_replacement or self._is_exception_to_rule(sentence):
                self.changing.add(len(self._sentences))
            for number in ended:
                self._revoke(number)
            self._add(sentence)

    def iter_pieces(self, numbers: Iterable[int]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the pieces of each of the sentences with these numbers, with the index of its text."""
        for number in sorted(numbers):
            yield bisect_right(self._text_starts, number) - 1, self._sentences[number].pieces

    def _add(self, sentence: _Sentence) -> None:
        number = len(self._sentences)
        self._sentences.append(sentence)
        if not sentence.can_be_ended:
            return
        for term in sentence.traits.terms:
            self._by_term[term].add(number)
        for end in sentence.own_ends:
            for term in end.terms:
                self._by_end_term[term].add(number)

    def _revoke(self, number: int) -> None:
        self.revoked.add(number)
        for term in self._sentences[number].traits.terms:
            self._by_term[term].discard(number)

    def _restore_rules(self, sentence: _Sentence) -> bool:
        """Put rules that ``sentence`` brings back in force again, on doubt too many.

        If the sentence says a rule with its values, it is the rule from then on, and the old one stays revoked. Return
        whether it does.
        """
        is_said_anew = False
        for number in list(self.revoked):
            old = self._sentences[number].traits
            if old.terms.isdisjoint(sentence.traits.terms):
                continue
            if old.values and old.values <= sentence.traits.values:
                is_said_anew = True
                continue
            self.revoked.discard(number)
            for term in old.terms:
                self._by_term[term].add(number)
        return is_said_anew

    def _is_exception_to_rule(self, sentence: _Sentence) -> bool:
        """Return whether ``sentence`` narrows a rule, which stays in force."""
        if not sentence.is_exception:
            return False
        match = self._find_best_match(sentence)
        return match is not None and len(match.shared) >= 2

    def _find_what_ends(self, sentence: _Sentence) -> Iterator[int]:
        """Yield the numbers of the rules that ``sentence``, the next one, ends; usually none."""
        if sentence.takes_back_last:
            yield from self._find_last_rule()
            return
        if sentence.reports_end:
            yield from self._find_ended_by_themselves(sentence)
        if not sentence.may_end_rules:
            return
        match = self._find_best_match(sentence)
        if match is None or self._sentences[match.number].has_clauses:
            return
        has_much = len(match.shared) >= 2
        old_traits = self._sentences[match.number].traits
        is_new_value = sentence.is_replacement and _has_other_value(old_traits, sentence.traits)
        is_end = has_much and (sentence.is_explicit_end or not sentence.is_replacement)
        is_replaced = is_new_value and (has_much or (match.is_only_one and not sentence.is_again))
        # One word is enough if it is most of what the sentence speaks of.
        is_named = match.is_only_one and len(match.shared) >= MIN_NAMED_SHARE * len(sentence.traits.terms)
        if is_end or is_replaced or (sentence.is_explicit_end and is_named):
            yield match.number

    def _find_last_rule(self) -> Iterator[int]:
        """Yield the rule that "scratch that" means: the sentence before it, or the only one of the message before.

        What stood before the first message after an extract is not known.
        """
        last = len(self._sentences) - 1
        if last < self._quoted_count:
            return
        starts = self._text_starts
        is_first_of_text = starts[-1] > last
        is_alone_before = len(starts) > 1 and starts[-2] == last
        if last < 0 or (is_first_of_text and not is_alone_before):
            return
        if self._sentences[last].can_be_ended and last not in self.revoked:
            yield last

    def _find_ended_by_themselves(self, sentence: _Sentence) -> Iterator[int]:
        """Yield the rules that were to hold until what ``sentence`` reports."""
        terms = sentence.traits.terms
        names = {value for _, value in sentence.traits.values}
        found = [self._by_end_term[term] for term in terms if term in self._by_end_term]
        for number in set().union(*(numbers for numbers in found if len(numbers) <= MAX_RULES_OF_A_WORD)):
            if number not in self.revoked and any(
                _is_same_event(end, terms, names) for end in self._sentences[number].own_ends
            ):
                yield number

    def _find_best_match(self, sentence: _Sentence) -> _Match | None:
        """Return the rule that shares most with ``sentence``, or None if none or several stand out."""
        known_terms = {term for term in sentence.traits.terms if self._by_term.get(term)}
        weights: defaultdict[int, float] = defaultdict(float)
        for term in known_terms:
            numbers = self._by_term[term]
            if len(numbers) <= MAX_RULES_OF_A_WORD:
                for number in numbers:
                    weights[number] += 1 / len(numbers)
        if not weights:
            return None
        best = max(weights, key=lambda number: (weights[number], number))
        second = max((weights[number] for number in weights if number != best), default=0.0)
        shared = self._sentences[best].traits.terms & known_terms
        if weights[best] < MIN_LEAD * second or len(shared) < MIN_COVERED_SHARE * len(known_terms):
            return None
        is_only_one = all(self._by_term[term] <= {best} for term in known_terms)
        return _Match(best, is_only_one, shared)


def _is_same_event(end: _Traits, terms: frozenset[str], names: set[str]) -> bool:
    """Return whether ``terms`` and ``names`` of a report speak of the event that ``end`` names."""
    shared = end.terms & terms
    if not shared:
        return False
    has_name = any(value in names for _, value in end.values)
    return has_name or len(shared) >= max(2, MIN_COVERED_SHARE * len(end.terms))


def _has_other_value(old: _Traits, new: _Traits) -> bool:
    """Return whether ``new`` has another number, time, path or name where ``old`` has one of the same type."""
    old_types = {kind for kind, _ in old.values}
    new_types = {kind for kind, _ in new.values}
    return old.values.isdisjoint(new.values) and not old_types.isdisjoint(new_types)


# -- what a sentence says ----------------------------------------------------------------------------------------------


def _estimate_sentence_memory(sentences: tuple[_Sentence, ...]) -> int:
    size = 0
    for sentence in sentences:
        size += 400 + sum(map(len, sentence.pieces))
        size += sum(map(_estimate_traits_memory, (sentence.traits, *sentence.own_ends)))
    return size


def _estimate_traits_memory(traits: _Traits) -> int:
    return 500 + 100 * (len(traits.terms) + len(traits.values))


@cache_by_text(_estimate_sentence_memory)
def _read_sentences(text: str) -> tuple[_Sentence, ...]:
    """Return the user's own sentences in a text, each with those that depend on it."""
    groups: list[list[Sentence]] = []
    for sentence in split_into_sentences(text):
        if sentence.kind > SentenceKind.REQUEST:
            continue
        # "Scratch that." needs the sentence before it as well, but ends it.
        depends = sentence.belongs_to_previous and _LAST_ONE.match(sentence.text) is None
        if groups and depends and len(groups[-1]) < MAX_JOINED_SENTENCES:
            groups[-1].append(sentence)
        else:
            groups.append([sentence])
    return tuple(map(_read_group, groups))


def _read_group(group: Sequence[Sentence]) -> _Sentence:
    pieces = tuple(sentence.text for sentence in group)
    text = "".join(pieces)
    traits = _find_traits(text)
    takes_back_last = _LAST_ONE.match(text) is not None
    is_explicit_end = _EXPLICIT_END.search(text) is not None
    lasts = min(sentence.kind for sentence in group) <= SentenceKind.STATEMENT
    # A question or a condition ends nothing, whatever words are in it.
    is_certain = _QUESTION_OR_CONDITION.search(text) is None
    return _Sentence(
        pieces=pieces,
        traits=traits,
        own_ends=tuple(_find_own_ends(text)),
        can_be_ended=lasts and not takes_back_last and (not is_explicit_end or bool(traits.values)),
        has_clauses=_CLAUSE.search(text) is not None,
        takes_back_last=is_certain and takes_back_last,
        reports_end=is_certain and _TERM_IS_OVER.search(text) is not None and _NOT_YET.search(text) is None,
        is_exception=_EXCEPTION.search(text) is not None,
        is_explicit_end=is_certain and is_explicit_end,
        is_possible_end=is_certain and _POSSIBLE_END.search(text) is not None,
        is_replacement=is_certain and _REPLACEMENT.search(text) is not None,
        is_again=is_certain and _AGAIN.search(text) is not None,
    )


def _find_own_ends(text: str) -> Iterator[_Traits]:
    """Yield what has to happen for the rule in ``text`` to end, if it says so."""
    events = _OWN_END.findall(text)
    if _HAN_OWN_END_WORD.search(text):
        events += _HAN_OWN_END.findall(text)
    for event in events:
        traits = _find_traits(event)
        if traits.terms:
            yield traits


# -- content words -----------------------------------------------------------------------------------------------------


def _find_traits(text: str) -> _Traits:
    terms: set[str] = set()
    values: set[tuple[str, str]] = set()
    is_first, previous_kind = True, ""
    for word in _WORD.findall(text):
        if "\u4e00" <= word[0] <= "\u9fff":
            for run in _HAN_STOP.split(word):
                terms.update(run[start : start + 2] for start in range(len(run) - 1))
            continue
        bare = word.rstrip(".:/-#@")
        kind = _find_value_type(bare)
        # The first word of a sentence begins with a capital letter, and what follows a number is a unit ("20 MB").
        if kind == "name" and (is_first or previous_kind == "number"):
            kind = ""
        is_first, previous_kind = False, kind
        if kind:
            values.add((kind, bare.lower()))
            terms.add(bare.lower())
            continue
        terms.update(_iter_stems(bare))
    return _Traits(frozenset(terms), frozenset(values))


def _find_value_type(word: str) -> str:
    """Return the type of a value: a number, time, path, code or name; empty for a plain word."""
    if re.fullmatch(r"\d{1,2}:\d\d", word):
        return "time"
    if re.fullmatch(r"\d[\d.,]*", word):
        return "number"
    if "/" in word:
        return "path"
    if re.search(r"\d", word):
        return "code"
    is_name = word[:1].isupper() and len(word) > 1 and word.lower() not in _STOPWORDS
    return "name" if is_name else ""


def _iter_stems(word: str) -> Iterable[str]:
    for part in re.split(r"[-_.:@#]", word.lower()):
        if len(part) > 1 and part not in _STOPWORDS:
            yield _stem(part)


def _stem(word: str) -> str:
    """Return ``word`` without the endings of number and time: "pushing", "pushed" and "pushes" are one word."""
    for ending in ("ing", "ies", "ed", "es", "s", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word.rstrip("e") if len(word) > 3 else word
