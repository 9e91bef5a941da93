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
    r"(\d{1,15})(?![\d]|\.\d| ?(?:bytes?|characters?|chars?|[kmg]i?b\b|pages?|"
    r"images?|messages?|items?|requests?|seconds?|ms\b))"
)
"""A number that may count tokens.

It has no other unit after it, does not follow Baidu's "characters is", and is not MiniMax's error code 2013.
"""
_WINDOW_WORDS = (
    r"(?:context|prompt|input|sequence|model|token|configured)(?:[ _-](?:context|prompt|input|"
    r"token))?s?"
)
_LENGTH_WORDS = r"(?:length|len|window|size|limit|tokens?)(?: limit)?"
_REQUESTED_WORDS = r"(?:requested|asked for|sent|submitted|provided|passed|used|given|received|got)"

_LIMIT_PATTERNS = _compile_each(
    rf"(?:>|>=|exceeds?)(?: the| its| our| your)? {_TOKEN_NUMBER}(?: tokens?)? (?:maximum|max\b|limit|allowed|context)",
    rf"\d(?: tokens?)?\)? ?(?:>|>=|/) ?(?:[a-z_]{{1,30}} ?[(=]?)?{_TOKEN_NUMBER}",
    rf"\b(?:above|over|beyond) (?:the |its |your )?{_TOKEN_NUMBER}(?: tokens?)? limit",
    rf"\b{_TOKEN_NUMBER}(?: tokens?)? (?:maximum context|context (?:length|window)|token limit\b|"
    rf"maximum input)",
    rf"\b(?:max|maximum)[ _-](?:supported |allowed |allowable |"
    rf"total )?{_WINDOW_WORDS}[ _-]?(?:{_LENGTH_WORDS})?(?: (?:of|for) [a-z][\w./:@-]{{0,80}})?"
    rf"(?: (?:is|of|was|allowed|supported|set to|for this model|only))*[ :=(]{{1,3}}{_TOKEN_NUMBER}",
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
    rf"\btoo (?:long|large|big)[ :(]{{1,3}}{_TOKEN_NUMBER}",
    rf"{_TOKEN_NUMBER}(?: input| prompt)? tokens?[^.\n\d]{{0,40}}(?:too (?:long|large)|exceed|longer|larger|"
    rf"greater|over)",
    rf"(?:请求|输入|当前|共|实际)[^\d\n]{{0,10}}{_TOKEN_NUMBER}",
)
_SUM_PATTERNS = _compile_each(
    r"\b(?P<asked>\d{1,15}) \+ (?P<output>\d{1,15}) (?:>=?|exceeds) (?P<limit>\d{1,15})",
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
    r"(?:prompt|input)(?: tokens)?[ :=(]{1,3}(?P<asked>\d{1,15})\)? ?(?:tokens )?(?:\+|plus|and) "
    r"(?:the )?(?:max_(?:new_|completion_|output_)?tokens|output|"
    r"completion)(?: tokens)?[ :=(]{1,3}(?P<output>\d{1,15})",
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
    r"payload size exceeds the limit: (\d{1,12}) bytes",
    r"limit on max bytes to request body ?: ?(\d{1,12})",
    r"total image size is [\d.]{1,12} ?mb, which exceeds the allowed limit of (\d{1,6})(?:\.\d{1,6})? ?(mb)",
)
"""Wordings that name the bytes of a body: Google's, Alibaba's, OpenAI's (of its images together, in megabytes)."""
# The smaller of the two meanings of "MB": a body sized by the larger one would be refused again.
_MEGABYTE = 1_000_000


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
    """Read the limit and the requested size of an error; numeric fields beside the message win over its text."""
    limit, limit_start = _find_first_number(_LIMIT_PATTERNS, facts.plain_text, -1)
    # "context length is 4096 tokens" matches both tables, and one number cannot be both sizes.
    requested_tokens, _ = _find_first_number(_REQUESTED_PATTERNS, facts.plain_text, limit_start)
    return StatedSizes(facts.counts.get("limit", limit), facts.counts.get("requested", requested_tokens))


def _find_first_number(patterns: tuple[re.Pattern[str], ...], text: str, excluded_start: int) -> tuple[int | None, int]:
    """Return the first number that does not begin at ``excluded_start``, and its position, or None and -1."""
    for pattern in patterns:
        for match in pattern.finditer(text):
            if match.start(1) != excluded_start:
                return int(match[1]), match.start(1)
    return None, -1


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


def find_body_limit(facts: ErrorFacts) -> int | None:
    """Read the bytes that a request body may have, or return None if the error does not state them (or states 0)."""
    match = _search_any(_BODY_LIMIT_PATTERNS, facts.plain_text)
    if match is None:
        return None
    is_in_megabytes = match[match.re.groups] == "mb"  # only one pattern has the unit as its last group
    return int(match[1]) * (_MEGABYTE if is_in_megabytes else 1) or None


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
