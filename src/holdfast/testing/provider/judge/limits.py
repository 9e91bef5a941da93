"""How large a request is, and whether it fits: the window, the output asked for, the wording of the refusal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from holdfast.providers.models import traits
from holdfast.testing.provider.blocks import Block
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.judge import overflowing
from holdfast.testing.provider.judge.counting import Scale
from holdfast.testing.provider.judge.overflowing import Measured
from holdfast.testing.provider.reading import Request
from holdfast.testing.provider.settings import Settings


class Measure(Struct, frozen=True):
    """The pieces that the model reads, and their tokens."""

    blocks: Sequence[Block]
    sums: Sequence[int]
    """Tokens of the first ``n`` pieces, for every ``n``."""
    cut: int = 0
    """Tokens that were dropped from the front, so that the rest fits."""

    @property
    def tokens(self) -> int:
        """Tokens of all of them, after the cut."""
        return self.sums[-1] - self.cut

    @property
    def frame(self) -> int:
        """Tokens of tools and system."""
        return self.sums[sum(block.section != "messages" for block in self.blocks)]


def measure(pieces: Sequence[Block], scale: Scale, request: Request, settings: Settings) -> Measure:
    """Return the size of a request, cut to the window where it is to be cut in silence."""
    sums = scale.sums(pieces)
    silent = settings.overflow == "silent" or request.body.get("truncation") == "auto"
    over = max(0, sums[-1] - settings.window) if silent and request.asked.endpoint != "count" else 0
    return Measure(pieces, sums, over)


def limit(request: Request, measured: Measure, settings: Settings) -> Refusal | None:
    """Return the refusal of a request that asks for more than there is, nothing when it fits."""
    output = request.output
    if settings.max_output is not None and output is not None and output > settings.max_output:
        return _too_much(request, output, settings.max_output)
    asked = output or 0
    counts = asked if counts_output(request, settings) else 0
    if measured.tokens + counts <= settings.window or settings.overflow == "silent":
        return None
    numbers = Measured(measured.tokens, settings.window, asked, request.model)
    return overflowing.refuse(settings.overflow, request.api, numbers, stream=request.asked.stream)


_OLDER_GPT = re.compile(r"gpt-(?:3|4)|davinci|turbo")
"""Chat models that refuse when prompt and completion together exceed the window."""


def counts_output(request: Request, settings: Settings) -> bool:
    """Return whether the output asked for must fit beside the input."""
    if settings.counts_output is not None or request.asked.endpoint != "generate":
        return bool(settings.counts_output) and request.asked.endpoint == "generate"
    if request.api == "anthropic":
        known = traits(request.model)
        return known is not None and known.prefill
    return request.api == "openai-chat" and _OLDER_GPT.search(request.model.lower()) is not None


def _too_much(request: Request, output: int, most: int) -> Refusal:
    if request.api == "anthropic":
        said = f"max_tokens: {output} > {most}, which is the maximum allowed number of output tokens for"
        return Refusal(400, "invalid_request_error", f"{said} {request.model}")
    if request.api == "gemini":
        said = f"Unable to submit request because it has a maxOutputTokens value of {output} but the supported range is"
        return Refusal(400, "INVALID_ARGUMENT", f"{said} from 1 (inclusive) to {most + 1} (exclusive).")
    said = f"max_tokens is too large: {output}. This model supports at most {most} completion tokens, whereas you"
    return Refusal(400, "invalid_value", f"{said} provided {output}.", details={"param": "max_tokens"})
