"""Read the numbers that an error states: the tokens that fit, those that were sent, and the answer's share of them.

Each table of patterns is tried in order, most specific first, and the first number found counts. Patterns read
``ErrorFacts.plain_text``, in which numbers are plain digits.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

from holdfast.providers.errors.error_facts import ErrorFacts


def _compile_each(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


_TOKEN_NUMBER = (
    r"(?<![\d.])(?<!characters is )(?<!max message length is )(?!2013\))"  # noqa: S105
    r"(\d{1,15})(?![\d]|\.\d| \(message too big| ?(?:bytes?|characters?|chars?|[kmg]i?b\b|pages?|"
    r"images?|messages?|items?|requests?|seconds?|ms\b))"
)
"""A number that may count tokens.

It has no other unit after it, does not follow Baidu's "characters is", and is not MiniMax's error code 2013 or the
WebSocket's 1009.
"""
_MINIMAX_INVALID = 2013
_CHARACTER_WORD = re.compile(r"\bcharacters?\b|\bchars\b|\bmaxlength\b|字符|文字")
_CHARACTERS_AFTER = re.compile(r" ?(?:characters?|chars)\b")
_LIMIT_BEFORE = re.compile(r"\b(?:max|maximum|limit|allowed)(?: [a-z]{1,10}){0,2}[ :=(]{1,3}$")
_WINDOW_WORDS = (
    r"(?:context|prompt|input|sequence|model|token|configured)(?:[ _-](?:context|prompt|input|"
    r"token))?s?"
)
_LENGTH_WORDS = r"(?:length|len|window|size|limit|tokens?)(?: limit)?"
_REQUESTED_WORDS = (
    r"(?:requested|asked for|sent|submitted|provided|passed|used|given|received|got|requires?|needs?|current(?:ly)?)"
)

_LIMIT_PATTERNS = _compile_each(
    rf"\btruncation length: {_TOKEN_NUMBER}",
    rf"(?:>|>=|exceeds?)(?: the| its| our| your)? {_TOKEN_NUMBER}(?: tokens?)? (?:maximum|max\b|limit|allowed|context)",
    rf"\d(?: tokens?)?\)? ?(?:>|>=|/) ?(?:[a-z_]{{1,30}} ?[(=]?)?{_TOKEN_NUMBER}",
    rf"\b(?:above|over|beyond) (?:the |its |your )?{_TOKEN_NUMBER}(?: tokens?)? limit",
    rf"\b{_TOKEN_NUMBER}(?: tokens?)? (?:maximum context|context (?:length|window)|token limit\b|"
    rf"maximum input)",
    rf"\b(?:max|maximum)[ _-](?:supported |allowed |allowable |"
    rf"total )?{_WINDOW_WORDS}[ _-]?(?:{_LENGTH_WORDS})?(?: (?:of|for) [a-z][\w./:@-]{{0,80}})?"
    rf"(?: (?:is|of|was|allowed|supported|set to|for this model|only|just))*[ :=(]{{1,3}}{_TOKEN_NUMBER}",
    rf"\b(?:context|sequence|model|tokens?|configured context)[ _-]{_LENGTH_WORDS}(?: (?:is|of|was|"
    rf"allowed|supported|set to|only|for this model))*[ :=(]{{1,3}}{_TOKEN_NUMBER}",
    rf"\b(?:limit|maximum|max|allowed|budget|capacity|n_ctx|max_model_len)"
    rf"(?: (?:is|of|at|to|size|number of tokens|tokens|allowed|only))*[ :=(]{{1,3}}{_TOKEN_NUMBER}",
    rf"(?:less than|fewer than|at most|no more than|up to|cannot exceed|can not exceed|"
    rf"must not exceed|<=?) {_TOKEN_NUMBER}",
    rf"should be \[\d{{1,9}}, ?{_TOKEN_NUMBER}\]",
    rf"(?:maximum|limit|max)[^.\n\d]{{0,60}}?\({_TOKEN_NUMBER}(?: tokens?)?\)",
    rf"(?:exceeds?|exceeded|over|than)(?: (?!by\b)[a-z-]{{1,12}}){{0,6}} (?:of |"
    rf"\()?{_TOKEN_NUMBER}(?: tokens?|\))",
    rf"\bmax_[a-z_]{{1,24}}(?: is)?(?: set to)?[ :=(]{{1,3}}{_TOKEN_NUMBER}",
    rf"\b(?:limit|maximum|max|window|capacity|budget)(?: (?!by\b)[a-z-]{{1,12}}){{0,6}} (?:is|of|was)(?: only)? "
    rf"{_TOKEN_NUMBER}",
    rf"\bonly (?:supports?|accepts?|allows?|handles?|takes?|has|have)(?: up to| at most)? {_TOKEN_NUMBER}",
    rf"{_TOKEN_NUMBER}(?: tokens?)?(?: are| is)? available\b",
    rf"\bhave (?:only )?{_TOKEN_NUMBER}(?: tokens?)?$",
    rf"(?:限制|上限|最大|窗口|长度)(?:为|是|:|：|\()?[^\d\n]{{0,8}}{_TOKEN_NUMBER}",
)
_REQUESTED_PATTERNS = _compile_each(
    rf"{_TOKEN_NUMBER}(?: tokens?)?\)? ?(?:>|>=|/) ?(?:[a-z_]{{1,30}} ?[(=]?)?\d",
    rf"tokens, {_TOKEN_NUMBER},",
    rf"\b(?:resulted in|results in|amounts? to|adds? up to|total(?:s|ed)? of|totals) (?:about |"
    rf"at least |over )?{_TOKEN_NUMBER}",
    rf"\byour (?:messages?|prompt|input|request)(?: [a-z]{{1,10}}){{0,2}} {_TOKEN_NUMBER} tokens?",
    rf"\b{_REQUESTED_WORDS}(?: tokens?)?:?(?: (?:a|total|of|about|approximately|around|at|least|over|"
    rf"token|count)){{0,5}}[ :=(]{{0,2}} ?{_TOKEN_NUMBER}",
    rf"\b(?:prompt|input|request|conversation|messages?|total|"
    rf"query)(?:[ _][a-z]{{1,10}}){{0,2}} ?\((?:length )?{_TOKEN_NUMBER}(?: tokens?)?\)",
    rf"\b(?:contains?|has|have|is|are|was|were|count|counted|length|size|of|tokens?)(?: at least|"
    rf" about| over)?"
    rf"[ :=(]{{1,3}}{_TOKEN_NUMBER}(?: tokens?)?(?: in| which| \w{{1,9}})? ?(?:tokens?|\)|exceed|cannot|which|"
    rf",|;|$)",
    rf"\b(?:prompt|input|request|text|n_keep)(?: token| tokens)?(?: count| length| size)?(?: is|"
    rf" of| was)?[ :=]{{1,3}}{_TOKEN_NUMBER}",
    rf"\bcurrent length is {_TOKEN_NUMBER}",
    rf"{_TOKEN_NUMBER}(?: tokens?)? (?:were|was|have been) (?:provided|given|sent|received|requested|supplied|passed)",
    rf"\btoo (?:long|large|big)[ :(]{{1,3}}{_TOKEN_NUMBER}",
    rf"{_TOKEN_NUMBER}(?: input| prompt)? tokens?[^.\n\d]{{0,40}}(?:too (?:long|large)|exceed|longer|larger|"
    rf"greater|over)",
    rf"(?:请求|输入|当前|共|实际)[^\d\n]{{0,10}}{_TOKEN_NUMBER}",
)
_SUM_PATTERNS = _compile_each(
    r"\b(?P<asked>\d{1,15}) ?\+ ?(?P<output>\d{1,15})\)? ?(?:>=?|exceeds?|is greater than) ?(?P<limit>\d{1,15})",
    r"(?P<asked>\d{1,15}) (?:input|prompt) tokens? (?:\+|plus|and) (?P<output>\d{1,15}) (?:max_\w{0,16}tokens|output|"
    r"completion)[a-z_ ]{0,12} ?(?:>|exceeds?|over)[^\d\n]{0,30}?(?P<limit>\d{1,15})",
    r"context limit:? (?P<asked>\d{1,15}) \+ (?P<output>\d{1,15}|max_tokens) (?:>|"
    r"exceeds) (?P<limit>\d{1,15})",
    r"passed (?P<asked>\d{1,15}) input tokens and requested (?P<output>\d{1,15}) output tokens"
    r"(?:.{0,60}?context length is (?:only )?(?P<limit>\d{1,15}))?",
    r"context (?:length|window)(?: is|"
    r" of)? (?P<limit>\d{1,15})(?: tokens)?.{0,60}?requested (?P<output>\d{1,15}) output tokens"
    r".{0,40}?(?:contains|has)(?: at least)? (?P<asked>\d{1,15})",
    r"context (?:length|window)(?: is|"
    r" of)? (?P<limit>\d{1,15})(?: tokens)?.{0,60}?request has (?P<alone>\d{1,15}) input tokens",
    r"inputs tokens \+ max_new_tokens must be <= (?P<limit>\d{1,15})(?:\. given: (?P<asked>\d{1,15})(?: inputs)?"
    r" tokens and (?P<output>\d{1,15}))?",
    r"(?P<asked>\d{1,15}) (?:tokens )?(?:from|in|for|of) (?:the |your )?(?:input |"
    r"text )?(?:messages|prompt|input)"
    r"[^()\n]{0,60}?(?P<output>\d{1,15}) (?:tokens )?(?:for|in|from|of) (?:the |"
    r"your )?(?:completion|output|answer|response)",
    r"input and (?:maximum )?output tokens ?\(?(?P<total>\d{1,15})?\)?"
    r".{0,40}?(?:exceed).{0,60}?limit ?\(?(?P<limit>\d{1,15})?",
    # TensorRT-LLM, Databricks, DashScope: both sizes with their names, then the limit of their sum
    r"(?:prompt|input)[a-z_ ]{0,24}[ :=(]{1,3}(?P<asked>\d{1,15})\b[^\n]{0,60}?"
    r"(?:max_\w{0,16}tokens|output|completion)[a-z_ ]{0,24}[ :=(]{1,3}(?P<output>\d{1,15})\b[^\n]{0,60}?"
    r"(?:exceed|less than|<=|>|greater|larger|over\b)[^\n\d]{0,60}?(?P<limit>\d{1,15})",
    r"(?:max_\w{0,16}tokens|output|completion)[a-z_ ]{0,24}[ :=(]{1,3}(?P<output>\d{1,15})\)? ?(?:tokens )?"
    r"(?:\+|plus|and) (?:the )?(?:prompt|input)[a-z_ ]{0,24}[ :=(]{1,3}(?P<asked>\d{1,15})\b[^\n]{0,60}?"
    r"(?:exceed|less than|<=|>|greater|larger|over\b)[^\n\d]{0,60}?(?P<limit>\d{1,15})",
    r"(?:prompt|input)(?: tokens)?[ :=(]{1,3}(?P<asked>\d{1,15})\)? ?(?:tokens )?(?:\+|plus|and) "
    r"(?:the )?(?:max_(?:new_|completion_|output_)?tokens|output|"
    r"completion)(?: tokens)?[ :=(]{1,3}(?P<output>\d{1,15})",
    r"(?P<asked>\d{1,15})[ -]tokens? (?:\+|plus|and) (?:the |a )?(?P<output>\d{1,15})[ -]tokens?\b[^\n]{0,60}?"
    r"(?:exceed|larger|greater|over\b|>)[^\n\d]{0,60}?(?P<limit>\d{1,15})[ -]token",
    r"input length and max_tokens exceed",
    r"\((?P<asked>\d{1,15}) in the messages, and the completion\)",
    r"(?:sum|total) of (?:the )?(?:prompt|input)(?: tokens| length)? and (?:max_|the )?(?:new_|"
    r"completion|output|tokens)"
    r"[^\n]{0,40}exceed",
)
"""Wordings of errors that add the answer's allowance to the prompt.

``asked`` is the prompt and ``output`` the answer, ``total`` is both. ``alone`` is a prompt that is stated by itself: if
it is over the limit, the prompt is too long without any answer.
"""
_SHARE_LIST = re.compile(r"requested (?:about |a total of )?\d{1,15} ?(?:tokens?)? ?\(([^()\n]{4,300})\)")
_TOKEN_SHARE = re.compile(r"(\d{1,15}) (?:tokens )?([a-z][a-z ]{1,40})")
_RATE_LIMIT_SIZES = re.compile(
    r"(?:tokens?[ -]per[ -]|\b[io]?tp[mdh]\b).{0,80}?limit:? (\d{1,15})"
    r"(?:, used:? \d{1,15})?,? (?:and )?requested:? (\d{1,15})"
)
_PROMPT_RATE_SIZES = re.compile(
    r"\b(?:prompt|input) of (\d{1,15}) tokens exceeds? (?:the |your )?(?:\w+ )?limit of (\d{1,15}) tokens per "
    r"(?:minute|hour|day)"
)
_TOKENS_PER_TIME = re.compile(r"(\d{1,15}) (?:input |output |prompt )?tokens per (?:minute|hour|day)")


_OUTPUT_FIELD = (
    r"(?:max_?(?:new_?|completion_?|output_?)?tokens|maxoutputtokens|max tokens|(?:completion|output|generated) tokens|"
    r"maximum tokens|maximum output)"
)
"""Names of the answer's allowance."""
_CAP_NUMBER = r"(?P<cap>\d{1,15})(?!\d|\.\d)"
_AT_MOST = (
    r"(?:at most|up to|no (?:more|greater) than|(?:can ?not|must not|may not|should not) (?:exceed|be greater than)|"
    r"less than or equal to|<=|≤|lower than or equal to|maximum(?: value)?(?: is| of|:)?|"
    r"max(?:imum)? allowed(?: is|:)?|limit(?: is| of|:)|不能超过|不得超过|最大(?:值)?(?:为|是)?|小于等于)"
)
_OUTPUT_CAP_PATTERNS = _compile_each(
    # DeepSeek, DashScope, GLM: "the valid range of max_tokens is [1, 8192]"
    rf"{_OUTPUT_FIELD}.{{0,60}}?[\[(（]\d{{1,3}} ?[,，~-] ?{_CAP_NUMBER} ?[\])）]",
    # Google: "supported range is from 1 (inclusive) to 65537 (exclusive)"
    rf"range is from \d{{1,3}}(?: \(inclusive\))? to {_CAP_NUMBER} ?\((?P<bound>in|ex)clusive\)",
    rf"{_OUTPUT_FIELD}.{{0,60}}?(?:between|from) \d{{1,3}} (?:and|to) {_CAP_NUMBER}",
    # Anthropic: "max_tokens: 128001 > 64000, which is the maximum allowed number of output tokens"
    rf"{_OUTPUT_FIELD}[ :=(]{{0,3}}\d{{1,15}}\)? ?(?:>=?|exceeds) ?(?:the )?{_CAP_NUMBER}",
    # OpenAI: "This model supports at most 4096 completion tokens"
    rf"{_AT_MOST} {_CAP_NUMBER} {_OUTPUT_FIELD}",
    # OpenAI, Groq, Databricks, Cohere, vLLM ("max_tokens=40000 cannot be greater than max_model_len=32768")
    rf"{_OUTPUT_FIELD}.{{0,100}}?{_AT_MOST} (?:max_model_len ?= ?)?{_CAP_NUMBER}",
    # Bedrock: "The maximum tokens you requested exceeds the model limit of 8192"
    rf"{_OUTPUT_FIELD}.{{0,60}}?exceeds? (?:\w{{1,12}} ){{0,4}}(?:limit|maximum)(?: of|:)? {_CAP_NUMBER}",
)
"""Wordings of the most tokens that an answer may have, most exact first."""


_BODY_LIMIT_PATTERNS = _compile_each(
    r"payload size exceeds the limit: (?P<limit>\d{1,12}) bytes",
    r"limit on max bytes to request body ?: ?(?P<limit>\d{1,12})",
    r"total image size is [\d.]{1,12} ?mb, which exceeds the allowed limit of (?P<limit>\d{1,6})(?:\.\d{1,6})? ?"
    r"(?P<unit>mb)",
    # Moonshot counts the bytes of all messages without saying so (MoonshotAI/kimi-code#476).
    r"total message size (?P<sent>\d{1,12}) exceeds (?:the )?limit (?P<limit>\d{1,12})",
    r"received message larger than max \((?P<sent>\d{1,12}) vs\.? (?P<limit>\d{1,12})\)",
    r"value at body failed to satisfy constraint: member must have length less than or equal to (?P<limit>\d{1,12})",
)
"""Wordings that name the bytes of a body without a unit, or of the images in it together."""
_BODY_WORD = re.compile(r"\b(?:request|payload|body|entity|message|frame)s?\b")
_NOT_A_BODY = re.compile(
    r"\b(?:images?|files?|attach\w*|documents?|audio|videos?|pdfs?|uploads?|uploaded|memory|ram|vram|content size|"
    r"disk|storage|download\w*|headers?|responses? (?:body|size|payload|too|exceed\w*))\b"
)
"""Things that have bytes too, and whose limits a shorter conversation does not cure."""
_BYTE_NUMBER = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,6})?)[ -]?(?P<unit>bytes?|[kmg]i?b)\b")
_BYTE_LIMIT_BEFORE = re.compile(r"(?:limit|max\w*|allow\w*|exceed\w*|than|over|>|up to)[^\d\n]{0,30}$")
_BYTE_LIMIT_AFTER = re.compile(r" ?\)?(?: \w{1,12})? (?:limit|max\w*|allowed)\b")
# The smaller of the two meanings of each unit: a body sized by the larger one would be refused again.
_BYTES_BY_UNIT = {"b": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


class StatedSizes(Struct, frozen=True):
    """Tokens that an error states; None for a number that it does not state."""

    limit: int | None = None
    requested: int | None = None
    """The prompt alone if ``output`` is known, else the total."""
    output: int | None = None

    @property
    def is_over_limit(self) -> bool:
        """Whether the error states both numbers and more was requested than fits."""
        return self.limit is not None and self.requested is not None and self.requested > self.limit


def find_stated_sizes(facts: ErrorFacts) -> StatedSizes:
    """Read the limit and the requested size of an error; numeric fields beside the message win over its text.

    A text that counts characters, and never tokens, states no tokens.
    """
    limit: int | None = None
    requested: int | None = None
    if _counts_tokens(facts.plain_text):
        limit, limit_start = _find_first_number(_LIMIT_PATTERNS, facts.plain_text)
        # "context length is 4096 tokens" matches both tables, and one number cannot be both sizes.
        requested, _ = _find_first_number(_REQUESTED_PATTERNS, facts.plain_text, limit, limit_start)
    return StatedSizes(facts.counts.get("limit", limit), facts.counts.get("requested", requested))


def _counts_tokens(text: str) -> bool:
    return "token" in text or _CHARACTER_WORD.search(text) is None


def is_output_number(facts: ErrorFacts, number: int | None) -> bool:
    """Return whether the error gives ``number`` as what was asked for as answer (``max_tokens=40000``)."""
    if number is None:
        return False
    return re.search(rf"{_OUTPUT_FIELD}(?: of| is|:|=)?[ :=(]{{0,3}}{number}\b", facts.plain_text) is not None


_LEAST_REQUEST = 16
"""Fewest tokens that a whole request has; fewer are those of its newest message (Gemini CLI tells them)."""
_LEAST_CANDIDATE = 128
"""Smallest number that ``complete_sizes`` takes for a count of tokens; smaller ones are indexes, codes and retries."""
_CANDIDATE = re.compile(
    r"(?<![A-Za-z0-9_.#/@+-])(?<!by )(?<!code )(?<!error )(?<!status )(?<!http )(?<!id )(?<!id: )(?<!line )(?<!column )"
    r"(\d{3,9})(?![A-Za-z0-9_/:@]|-(?!tok)|\.\d| ?(?:bytes?|characters?|chars?|[kmg]i?b\b|pages?|images?|messages?|"
    r"items?|requests?|seconds?|ms\b|%|字符|字节))"
)
_OUTPUT_BEFORE = re.compile(r"(?:output|completion|max_\w{0,16}tokens|answer|response)[a-z_ ]{0,12}[ :=(]{1,3}$")
_OUTPUT_AFTER = re.compile(r" ?(?:tokens? )?(?:for|in|of)? ?(?:the |your )?(?:output|completion|answer|response)")
_EXCEEDING = re.compile(
    r"exceed|surpass|larger|greater|longer|more than|over|above|beyond|>|超|大于|大於|초과|превы|supera"
)


def complete_sizes(facts: ErrorFacts) -> StatedSizes:
    """Read the sizes of an error that is known to be an overflow, in any language and order.

    What the tables of wordings do not find is told by size: of two counts in an overflow, the larger was sent and the
    smaller is the limit.
    """
    sizes = find_stated_sizes(facts)
    if sizes.requested is not None and sizes.requested < _LEAST_REQUEST:
        sizes = StatedSizes(sizes.limit)
    if sizes.is_over_limit or "limit" in facts.counts or not _counts_tokens(facts.plain_text):
        return sizes
    candidates = _list_size_candidates(facts)
    if len(candidates) != 2:
        return sizes
    low, high = sorted(candidates)
    if sizes.limit is None or sizes.limit == low:
        # The table found nothing, the limit alone, or took the limit for the request.
        if sizes.requested in (None, low, high):
            return StatedSizes(low, high)
    elif sizes.limit == high and _is_stated_as_exceeding(facts.plain_text, high, low):
        return StatedSizes(low, high)
    return sizes


def _list_size_candidates(facts: ErrorFacts) -> list[int]:
    """List the different numbers that may count tokens of the prompt; three stand for any larger number of them."""
    text = facts.plain_text
    candidates: list[int] = []
    for match in _CANDIDATE.finditer(text):
        number = int(match[1])
        is_status = number in facts.statuses or match[1] in facts.codes or number == _MINIMAX_INVALID
        before = text[max(0, match.start() - 40) : match.start()]
        is_output = _OUTPUT_BEFORE.search(before) or _OUTPUT_AFTER.match(text, match.end())
        if number >= _LEAST_CANDIDATE and not is_status and not is_output and number not in candidates:
            candidates.append(number)
        if len(candidates) > 2:
            break
    return candidates


def _is_stated_as_exceeding(text: str, high: int, low: int) -> bool:
    """Return whether ``text`` says of the first number that it is more than the second."""
    match = re.search(rf"\b{high}\b(.{{0,120}}?)\b{low}\b", text)
    return match is not None and _EXCEEDING.search(match[1]) is not None


def _find_first_number(
    patterns: tuple[re.Pattern[str], ...], text: str, limit: int | None = None, limit_start: int = -1
) -> tuple[int | None, int]:
    """Return the first number that is not the ``limit`` at ``limit_start``, and its position, or None and -1.

    Gateways repeat a message, so the limit is also recognized by the word before it ("max size: 4000 tokens").
    """
    for pattern in patterns:
        for match in pattern.finditer(text):
            number, start = int(match[1]), match.start(1)
            is_limit = number == limit and _LIMIT_BEFORE.search(text[max(0, start - 30) : start])
            if start != limit_start and not is_limit:
                return number, start
    return None, -1


def is_lower_bound(facts: ErrorFacts, requested: int | None) -> bool:
    """Return whether the error says "at least" of the requested tokens."""
    return requested is not None and f"at least {requested}" in facts.plain_text


def find_combined_sizes(facts: ErrorFacts) -> StatedSizes | None:
    """Read the sizes of an error that counts prompt and answer together, or return None if it does not.

    The difference matters: asking for a shorter answer may cure such an error without touching the conversation.
    """
    shares = _find_token_shares(facts.plain_text)
    if shares is not None:
        return StatedSizes(find_stated_sizes(facts).limit, shares.prompt, shares.output)
    match = _search_any(_SUM_PATTERNS, facts.plain_text)
    if match is None:
        return None
    # Not every pattern has every group, and Anthropic writes the word "max_tokens" where the number of output was.
    sizes_by_name = {name: int(digits) for name, digits in match.groupdict().items() if digits and digits.isdecimal()}
    if "alone" in sizes_by_name and sizes_by_name["alone"] > sizes_by_name["limit"]:
        return None
    stated_sizes = find_stated_sizes(facts)
    requested_tokens = stated_sizes.requested
    if "asked" in sizes_by_name and _CHARACTERS_AFTER.match(facts.plain_text, match.end("asked")):
        # vLLM does not tokenize a prompt with more characters than its window can have.
        return StatedSizes(sizes_by_name.get("limit", stated_sizes.limit), None, sizes_by_name.get("output"))
    for name in ("asked", "alone", "total"):
        if name in sizes_by_name:
            requested_tokens = sizes_by_name[name]
            break
    return StatedSizes(
        sizes_by_name.get("limit", stated_sizes.limit),
        requested_tokens,
        sizes_by_name.get("output"),
    )


def _search_any(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    """Return the match of the first pattern that occurs in ``text``, or None."""
    for pattern in patterns:
        match = pattern.search(text)
        if match is not None:
            return match
    return None


class _TokenShares(NamedTuple):
    prompt: int
    output: int


def _find_token_shares(text: str) -> _TokenShares | None:
    """Read a list of shares like ``9904 tokens (9648 in your prompt; 256 for the completion)``, or return None.

    Shares of tools and images count as prompt.
    """
    match = _SHARE_LIST.search(text)
    if match is None:
        return None
    prompt_tokens = output_tokens = 0
    for count, label in _TOKEN_SHARE.findall(match[1]):
        if "completion" in label or "output" in label or "answer" in label:
            output_tokens += int(count)
        else:
            prompt_tokens += int(count)
    if prompt_tokens:
        return _TokenShares(prompt_tokens, output_tokens)
    return None


def find_rate_sizes(facts: ErrorFacts) -> StatedSizes | None:
    """Read the tokens allowed in a period and those of this request, or return None if not both are stated."""
    match = _RATE_LIMIT_SIZES.search(facts.plain_text)
    if match:
        return StatedSizes(limit=int(match[1]), requested=int(match[2]))
    prompt_match = _PROMPT_RATE_SIZES.search(facts.plain_text)
    if prompt_match:
        return StatedSizes(limit=int(prompt_match[2]), requested=int(prompt_match[1]))
    return None


class ByteSizes(NamedTuple):
    """Bytes that an error states; None for a number that it does not state."""

    limit: int | None = None
    sent: int | None = None


def find_byte_sizes(facts: ErrorFacts) -> ByteSizes:
    """Read the bytes that a request body may have, and those it had. A limit of 0 counts as not stated."""
    match = _search_any(_BODY_LIMIT_PATTERNS, facts.plain_text)
    if match is not None:
        groups = match.groupdict()
        limit = _to_bytes(groups["limit"], groups.get("unit") or "b")
        return ByteSizes(limit or None, int(groups["sent"]) if groups.get("sent") else None)
    for line in facts.plain_text.split("\n"):
        if _BODY_WORD.search(line) and not _NOT_A_BODY.search(line):
            sizes = _find_byte_sizes_in_line(line)
            if sizes != ByteSizes():
                return sizes
    return ByteSizes()


def _find_byte_sizes_in_line(line: str) -> ByteSizes:
    """Read the sizes in bytes in one line: of two different ones, the larger was sent and the smaller is the limit."""
    numbers: list[int] = []
    limits: list[int] = []
    for match in _BYTE_NUMBER.finditer(line):
        size = _to_bytes(match["number"], match["unit"])
        numbers.append(size)
        has_limit_word = _BYTE_LIMIT_BEFORE.search(line[max(0, match.start() - 60) : match.start()])
        if has_limit_word or _BYTE_LIMIT_AFTER.match(line, match.end()):
            limits.append(size)
    if len(set(numbers)) == 2:
        return ByteSizes(min(numbers) or None, max(numbers))
    if len(set(numbers)) == 1:
        return ByteSizes(numbers[0] or None) if limits else ByteSizes(sent=numbers[0])
    return ByteSizes()


def _to_bytes(number: str, unit: str) -> int:
    whole, _, places = number.partition(".")
    factor = _BYTES_BY_UNIT[unit[0]]
    return int(whole) * factor + (int(places) * factor // 10 ** len(places) if places else 0)


def find_rate_allowance(facts: ErrorFacts) -> int | None:
    """Read an allowance like ``40,000 input tokens per minute`` (or hour, or day), or return None."""
    match = _TOKENS_PER_TIME.search(facts.plain_text)
    return int(match[1]) if match else None


def find_output_cap(facts: ErrorFacts) -> int | None:
    """Read the most tokens that a request may ask for as answer, or return None if the error does not state it.

    Only for errors about the answer's length: the patterns are too wide for others.
    """
    match = _search_any(_OUTPUT_CAP_PATTERNS, facts.plain_text)
    if match is None:
        return None
    cap = int(match["cap"])
    if match.groupdict().get("bound") == "ex":
        cap -= 1
    return cap or None
