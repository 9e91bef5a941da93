"""The numbers that an error states: what fits, what was asked for, and how much of that is the answer."""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.providers.overflow.reading import Facts


def _each(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


_N = (
    r"(?<![\d.])(?<!characters is )(?<!max message length is )(?!2013\))"
    r"(\d{1,15})(?![\d]|\.\d| ?(?:bytes?|characters?|chars?|[kmg]i?b\b|pages?|"
    r"images?|messages?|items?|requests?|seconds?|ms\b))"
)
"""A number that may be tokens: its unit is no other (Baidu's is characters), and it is not MiniMax's code."""
_WINDOW = (
    r"(?:context|prompt|input|sequence|model|token|configured)(?:[ _-](?:context|prompt|input|"
    r"token))?s?"
)
_EXTENT = r"(?:length|len|window|size|limit|tokens?)(?: limit)?"
_REQUESTED = r"(?:requested|asked for|sent|submitted|provided|passed|used|given|received|got)"

_LIMITS = _each(
    rf"(?:>|>=|exceeds?)(?: the| its| our| your)? {_N}(?: tokens?)? (?:maximum|max\b|limit|allowed|context)",
    rf"\d(?: tokens?)?\)? ?(?:>|>=|/) ?(?:[a-z_]{{1,30}} ?[(=]?)?{_N}",
    rf"\b(?:above|over|beyond) (?:the |its |your )?{_N}(?: tokens?)? limit",
    rf"\b{_N}(?: tokens?)? (?:maximum context|context (?:length|window)|token limit\b|"
    rf"maximum input)",
    rf"\b(?:max|maximum)[ _-](?:supported |allowed |allowable |"
    rf"total )?{_WINDOW}[ _-]?(?:{_EXTENT})?(?: (?:of|for) [a-z][\w./:@-]{{0,80}})?"
    rf"(?: (?:is|of|was|allowed|supported|set to|for this model|only))*[ :=(]{{1,3}}{_N}",
    rf"\b(?:context|sequence|model|tokens?|configured context)[ _-]{_EXTENT}(?: (?:is|of|was|"
    rf"allowed|supported|set to|only|for this model))*[ :=(]{{1,3}}{_N}",
    rf"\b(?:limit|maximum|max|allowed|budget|capacity|n_ctx|max_model_len)"
    rf"(?: (?:is|of|at|to|size|number of tokens|tokens|allowed|only))*[ :=(]{{1,3}}{_N}",
    rf"(?:less than|fewer than|at most|no more than|up to|cannot exceed|can not exceed|"
    rf"must not exceed|<=?) {_N}",
    rf"should be \[\d{{1,9}}, ?{_N}\]",
    rf"(?:maximum|limit|max)[^.\n\d]{{0,60}}?\({_N}(?: tokens?)?\)",
    rf"(?:exceeds?|exceeded|over|than)(?: (?!by\b)[a-z-]{{1,12}}){{0,6}} (?:of |"
    rf"\()?{_N}(?: tokens?|\))",
    rf"(?:限制|上限|最大|窗口|长度)(?:为|是|:|：|\()?[^\d\n]{{0,8}}{_N}",
)
_ASKED = _each(
    rf"{_N}(?: tokens?)?\)? ?(?:>|>=|/) ?(?:[a-z_]{{1,30}} ?[(=]?)?\d",
    rf"tokens, {_N},",
    rf"\b(?:resulted in|results in|amounts? to|adds? up to|total(?:s|ed)? of|totals) (?:about |"
    rf"at least |over )?{_N}",
    rf"\byour (?:messages?|prompt|input|request)(?: [a-z]{{1,10}}){{0,2}} {_N} tokens?",
    rf"\b{_REQUESTED}(?: tokens?)?:?(?: (?:a|total|of|about|approximately|around|at|least|over|"
    rf"token|count)){{0,5}}[ :=(]{{0,2}} ?{_N}",
    rf"\b(?:prompt|input|request|conversation|messages?|total|"
    rf"query)(?:[ _][a-z]{{1,10}}){{0,2}} ?\((?:length )?{_N}(?: tokens?)?\)",
    rf"\b(?:contains?|has|have|is|are|was|were|count|counted|length|size|of|tokens?)(?: at least|"
    rf" about| over)?"
    rf"[ :=(]{{1,3}}{_N}(?: tokens?)?(?: in| which| \w{{1,9}})? ?(?:tokens?|\)|exceed|cannot|which|"
    rf",|;|$)",
    rf"\b(?:prompt|input|request|text|n_keep)(?: token| tokens)?(?: count| length| size)?(?: is|"
    rf" of| was)?[ :=]{{1,3}}{_N}",
    rf"\bcurrent length is {_N}",
    rf"\btoo (?:long|large|big)[ :(]{{1,3}}{_N}",
    rf"{_N}(?: input| prompt)? tokens?[^.\n\d]{{0,40}}(?:too (?:long|large)|exceed|longer|larger|"
    rf"greater|over)",
    rf"(?:请求|输入|当前|共|实际)[^\d\n]{{0,10}}{_N}",
)
_SUMS = _each(
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
_SHARES = re.compile(r"requested (?:about |a total of )?\d{1,15} ?(?:tokens?)? ?\(([^()\n]{4,300})\)")
_SHARE = re.compile(r"(\d{1,15}) (?:tokens )?([a-z][a-z ]{1,40})")
_PER_TIME = re.compile(
    r"(?:tokens?[ -]per[ -]|\b[io]?tp[mdh]\b).{0,80}?limit:? (\d{1,15})"
    r"(?:, used:? \d{1,15})?,? (?:and )?requested:? (\d{1,15})"
)
_PROMPT_PER_TIME = re.compile(
    r"\b(?:prompt|input) of (\d{1,15}) tokens exceeds? (?:the |your )?(?:\w+ )?limit of (\d{1,15}) tokens per "
    r"(?:minute|hour|day)"
)
_RATE_OF = re.compile(r"(\d{1,15}) (?:input |output |prompt )?tokens per (?:minute|hour|day)")


_BODIES = _each(
    r"payload size exceeds the limit: (\d{1,12}) bytes",
    r"limit on max bytes to request body ?: ?(\d{1,12})",
    r"total image size is [\d.]{1,12} ?mb, which exceeds the allowed limit of (\d{1,6})(?:\.\d{1,6})? ?(mb)",
)
"""Wordings that name the bytes of a body: Google's, Alibaba's, OpenAI's (of its images together, in megabytes)."""
_MEGABYTE = 1_000_000


class Sizes(Struct, frozen=True):
    """Tokens that an error states. ``asked`` is the prompt alone where ``output`` is known."""

    limit: int | None = None
    asked: int | None = None
    output: int | None = None

    @property
    def over(self) -> bool:
        """Whether more was asked for than fits, by the error's own numbers."""
        return self.limit is not None and self.asked is not None and self.asked > self.limit


def stated(facts: Facts) -> Sizes:
    """Return the size that fits and the size that was asked for, as far as the error states them."""
    limit, at = _first(_LIMITS, facts.text, -1)
    asked, _ = _first(_ASKED, facts.text, at)
    return Sizes(facts.counts.get("limit", limit), facts.counts.get("requested", asked))


def _first(patterns: tuple[re.Pattern[str], ...], text: str, taken: int) -> tuple[int | None, int]:
    """Return the first number found that does not stand at ``taken``, and where it stands."""
    for pattern in patterns:
        for match in pattern.finditer(text):
            if match.start(1) != taken:
                return int(match[1]), match.start(1)
    return None, -1


def summed(facts: Facts) -> Sizes | None:
    """Return the sizes of an error that counts prompt and answer together; None for any other."""
    shares = _shares(facts.text)
    if shares is not None:
        return Sizes(stated(facts).limit, *shares)
    match = next(filter(None, (pattern.search(facts.text) for pattern in _SUMS)), None)
    if match is None:
        return None
    named = {name: int(found) for name, found in match.groupdict().items() if found and found.isdecimal()}
    if "alone" in named and named["alone"] > named["limit"]:
        return None
    rest = stated(facts)
    asked = named.get("asked", named.get("alone", named.get("total", rest.asked)))
    return Sizes(named.get("limit", rest.limit), asked, named.get("output"))


def _shares(text: str) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer out of ``9904 tokens (9648 in your prompt; 256 for the completion)``."""
    found = _SHARES.search(text)
    prompt = output = 0
    for count, what in _SHARE.findall(found[1]) if found else ():
        if "completion" in what or "output" in what or "answer" in what:
            output += int(count)
        else:
            prompt += int(count)
    return (prompt, output) if found and prompt else None


def per_time(facts: Facts) -> Sizes | None:
    """Return the tokens a minute (or day) that are allowed and those of this request, where both are stated."""
    if found := _PER_TIME.search(facts.text):
        return Sizes(int(found[1]), int(found[2]))
    prompt = _PROMPT_PER_TIME.search(facts.text)
    return Sizes(int(prompt[2]), int(prompt[1])) if prompt else None


def body_limit(facts: Facts) -> int | None:
    """Return the bytes that a body may have, where the error names them."""
    found = next(filter(None, (pattern.search(facts.text) for pattern in _BODIES)), None)
    return int(found[1]) * (_MEGABYTE if found[found.re.groups] == "mb" else 1) or None if found else None


def allowance(facts: Facts) -> int | None:
    """Return the tokens a minute that are allowed, from ``40,000 input tokens per minute``."""
    found = _RATE_OF.search(facts.text)
    return int(found[1]) if found else None
