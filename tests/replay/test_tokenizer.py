"""How the replay counts tokens."""

from __future__ import annotations

import pytest
from msgspec import Raw

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Text, Thinking, ToolCall, ToolResult
from holdfast.replay.tokenizer import UsageReading, compute_usage_ratio, count_message_tokens, get_tokenizer


def test_get_tokenizer_is_o200k_with_the_exact_extra() -> None:
    """With the ``exact`` extra the tokenizer is o200k: these four words are four tokens in its vocabulary."""
    pytest.importorskip("bpe_openai")
    name, count = get_tokenizer()
    assert name == "o200k"
    assert (count(""), count("The cat sat down"), count("1234567")) == (0, 4, 3)


def test_get_tokenizer_counts_lone_surrogates() -> None:
    """A text with a lone surrogate, which JSON may contain, is counted instead of refused."""
    _, count = get_tokenizer()
    assert count("a \ud800 b") > 0


def test_count_message_tokens_counts_text_arguments_names_and_overhead() -> None:
    """Text, arguments and names count by the tokenizer, ids do not, and a message costs 8 more."""
    call = ToolCall("an id that is not counted", "read", '{"a":1}')
    message = Message("assistant", (Text("12345"), Thinking("123"), call))
    assert count_message_tokens(message, len) == 8 + 5 + 3 + 4 + 7


def test_count_message_tokens_counts_media_by_rule() -> None:
    """An image is 1,500 tokens, a document 2,000, also inside a result, and an opaque part is its own JSON."""
    result = ToolResult("id", "name", (Text("1234"), Media("image", "image/png"), Media("document", "application/pdf")))
    assert count_message_tokens(Message("tool", (result,)), len) == 8 + 4 + 1_500 + 2_000
    assert count_message_tokens(Message("user", (Opaque("odd", Raw(b'{"x":1}')), Opaque("bare"))), len) == 8 + 7


def test_compute_usage_ratio_divides_recorded_by_counted_growth() -> None:
    """The ratio divides the recorded growth by the counted growth, (300 + 900) / (200 + 400), whatever the setup is."""
    readings = [UsageReading(10_000, 50), UsageReading(10_300, 250), UsageReading(11_200, 650)]
    assert compute_usage_ratio(readings) == 2.0


def test_compute_usage_ratio_ignores_jumps_and_compactions() -> None:
    """Growth over 60,000 on either side and growth across a recorded compaction are left out."""
    readings = [
        UsageReading(1_000, 1_000),
        UsageReading(1_150, 1_100),
        UsageReading(61_151, 1_200),
        UsageReading(500, 1_300, restart=True),
        UsageReading(650, 1_400),
        UsageReading(700, 61_401),
    ]
    assert compute_usage_ratio(readings) == 1.5


@pytest.mark.parametrize(
    "readings",
    [
        [],
        [UsageReading(500, 400)],
        [UsageReading(0, 10), UsageReading(0, 20)],
        [UsageReading(9, 10), UsageReading(90, 10)],
    ],
)
def test_compute_usage_ratio_is_1_without_growth(readings: list[UsageReading]) -> None:
    """Without recorded growth the ratio is 1."""
    assert compute_usage_ratio(readings) == 1.0
