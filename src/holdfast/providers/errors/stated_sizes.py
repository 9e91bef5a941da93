"""The numbers that an error states: what fits, what was asked for, and how much of that is the answer."""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.providers.errors.error_facts import ErrorFacts


def _compile_each(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


_TOKEN_NUMBER = (
    r"(?<![\d.])(?<!characters is )(?<!max message length is )(?!2013\))"  # noqa: S105
    r"(\d{1,15})(?![\d]|\.\d| ?(?:bytes?|characters?|chars?|[kmg]i?b\b|pages?|"
    r"images?|messages?|items?|requests?|seconds?|ms\b))"
)
"""A number that may be tokens: its unit is no other (Baidu's is characters), and it is not MiniMax's code."""
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
"""Wordings that count the answer's allowance in, and tell it from the prompt. ``alone`` is a prompt that is told
without the answer: over the limit, it is too long by itself."""
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


_BODY_LIMIT_PATTERNS = _compile_each(
    r"payload size exceeds the limit: (\d{1,12}) bytes",
    r"limit on max bytes to request body ?: ?(\d{1,12})",
    r"total image size is [\d.]{1,12} ?mb, which exceeds the allowed limit of (\d{1,6})(?:\.\d{1,6})? ?(mb)",
)
"""Wordings that name the bytes of a body: Google's, Alibaba's, OpenAI's (of its images together, in megabytes)."""
_MEGABYTE = 1_000_000


class StatedSizes(Struct, frozen=True):
    """Tokens that an error states. ``requested`` is the prompt alone where ``output`` is known."""

    limit: int | None = None
    requested: int | None = None
    output: int | None = None

    @property
    def is_over_limit(self) -> bool:
        """Whether more was asked for than fits, by the error's own numbers."""
        return self.limit is not None and self.requested is not None and self.requested > self.limit


def find_stated_sizes(facts: ErrorFacts) -> StatedSizes:
    """Return the size that fits and the size that was asked for, as far as the error states them."""
    limit, at = _find_first_number(_LIMIT_PATTERNS, facts.plain_text, -1)
    requested_tokens, _ = _find_first_number(_REQUESTED_PATTERNS, facts.plain_text, at)
    return StatedSizes(facts.counts.get("limit", limit), facts.counts.get("requested", requested_tokens))


def _find_first_number(patterns: tuple[re.Pattern[str], ...], text: str, excluded_start: int) -> tuple[int | None, int]:
    """Return the first number found that does not stand at ``excluded_start``, and where it stands."""
    for pattern in patterns:
        for match in pattern.finditer(text):
            if match.start(1) != excluded_start:
                return int(match[1]), match.start(1)
    return None, -1


def find_combined_sizes(facts: ErrorFacts) -> StatedSizes | None:
    """Return the sizes of an error that counts prompt and answer together; None for any other."""
    shares = _find_token_shares(facts.plain_text)
    if shares is not None:
        return StatedSizes(find_stated_sizes(facts).limit, *shares)
    match = next(filter(None, (pattern.search(facts.plain_text) for pattern in _SUM_PATTERNS)), None)
    if match is None:
        return None
    sizes_by_name = {name: int(digits) for name, digits in match.groupdict().items() if digits and digits.isdecimal()}
    if "alone" in sizes_by_name and sizes_by_name["alone"] > sizes_by_name["limit"]:
        return None
    stated_sizes = find_stated_sizes(facts)
    requested_tokens = sizes_by_name.get(
        "asked", sizes_by_name.get("alone", sizes_by_name.get("total", stated_sizes.requested))
    )
    return StatedSizes(sizes_by_name.get("limit", stated_sizes.limit), requested_tokens, sizes_by_name.get("output"))


def _find_token_shares(text: str) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer out of ``9904 tokens (9648 in your prompt; 256 for the completion)``."""
    match = _SHARE_LIST.search(text)
    prompt = output = 0
    for count, label in _TOKEN_SHARE.findall(match[1]) if match else ():
        if "completion" in label or "output" in label or "answer" in label:
            output += int(count)
        else:
            prompt += int(count)
    return (prompt, output) if match and prompt else None


def find_rate_sizes(facts: ErrorFacts) -> StatedSizes | None:
    """Return the tokens a minute (or day) that are allowed and those of this request, where both are stated."""
    if match := _RATE_LIMIT_SIZES.search(facts.plain_text):
        return StatedSizes(int(match[1]), int(match[2]))
    prompt = _PROMPT_RATE_SIZES.search(facts.plain_text)
    return StatedSizes(int(prompt[2]), int(prompt[1])) if prompt else None


def find_body_limit(facts: ErrorFacts) -> int | None:
    """Return the bytes that a body may have, where the error names them."""
    match = next(filter(None, (pattern.search(facts.plain_text) for pattern in _BODY_LIMIT_PATTERNS)), None)
    return int(match[1]) * (_MEGABYTE if match[match.re.groups] == "mb" else 1) or None if match else None


def find_rate_allowance(facts: ErrorFacts) -> int | None:
    """Return the tokens a minute that are allowed, from ``40,000 input tokens per minute``."""
    match = _TOKENS_PER_TIME.search(facts.plain_text)
    return int(match[1]) if match else None
