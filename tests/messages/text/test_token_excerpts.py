"""A text in so many tokens: whole where it fits, else with a line that says how much is left out."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.token_excerpts import clip_text_with_notice

LEFT_OUT = re.compile(r"\n\[([\d,]+) characters of the plan are left out here\]\Z")


@given(st.text(max_size=400), st.integers(0, 200))
def test_nothing_goes_without_a_word(text, more):
    """A text that fits is itself; of a longer one the beginning is there, and the line counts what is not."""
    whole = estimate_text_tokens(text)
    assert clip_text_with_notice(text, whole + more, "the plan") == text
    if not whole:
        assert clip_text_with_notice(text, -1 - more, "the plan") == text
        return
    short = clip_text_with_notice(text, whole - 1 - more, "the plan")
    found = LEFT_OUT.search(short)
    assert found is not None
    held = short[: found.start()]
    assert text.startswith(held)
    assert len(held) + int(found[1].replace(",", "")) == len(text)


def test_about_as_many_tokens_are_shown_as_are_wanted():
    """The line comes on top; what is shown is within a tenth of what was asked for."""
    text = "\n".join(f"step {number} of the long way" for number in range(2_000))
    held = LEFT_OUT.sub("", clip_text_with_notice(text, 500, "the plan"))
    assert 450 <= estimate_text_tokens(held) <= 550
