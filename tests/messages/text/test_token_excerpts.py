"""A text within a number of tokens: whole where it fits, otherwise with a line that states how much is left out."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.token_excerpts import clip_text_with_notice

NOTICE_RE = re.compile(r"\n\[([\d,]+) characters of the plan are left out here\]\Z")


@given(st.text(max_size=400), st.integers(0, 200))
def test_clip_text_with_notice_counts_what_it_leaves_out(text, more):
    """A text that fits is returned whole; of a longer one the start is kept, and the line counts the rest."""
    total_tokens = estimate_text_tokens(text)
    assert clip_text_with_notice(text, total_tokens + more, "the plan") == text
    if not total_tokens:
        assert clip_text_with_notice(text, -1 - more, "the plan") == text
        return
    clipped = clip_text_with_notice(text, total_tokens - 1 - more, "the plan")
    found = NOTICE_RE.search(clipped)
    assert found is not None
    kept = clipped[: found.start()]
    assert text.startswith(kept)
    assert len(kept) + int(found[1].replace(",", "")) == len(text)


def test_clip_text_with_notice_keeps_about_the_requested_tokens():
    """The notice comes on top; the kept text is within a tenth of the requested tokens."""
    text = "\n".join(f"step {number} of the long way" for number in range(2_000))
    kept = NOTICE_RE.sub("", clip_text_with_notice(text, 500, "the plan"))
    assert 450 <= estimate_text_tokens(kept) <= 550
