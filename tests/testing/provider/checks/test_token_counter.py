"""Token counts of the strict provider: independent of the estimator, flat for media, rounded once."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.testing.provider.calls import ScriptedAnswer, TokenCountReply
from holdfast.testing.provider.checks import token_counter as counting
from holdfast.testing.provider.checks.token_counter import RequestCounter, count_word_pieces, get_token_counter
from holdfast.testing.provider.client import ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.request_pieces import split_into_blocks
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.visible_text import DOCUMENT_TOKENS, IMAGE_TOKENS

PROSE = "The holdfast is the part of a kelp that keeps it on the rock, whatever the sea does. " * 40
CODE = "def _pieces(request: Request, sums: Sequence[int]) -> Iterator[tuple[bytes, int]]:\n    return iter(())\n" * 40
PIXELS = base64.b64encode(bytes(30_000)).decode()


def count_tokens(api, body, **fields):
    model = "gemini-3-pro" if api == "gemini" else ""
    reply = Provider(ProviderSettings(tokenizer="words", **fields)).answer_body(
        api, body, endpoint="count", model=model
    )
    assert isinstance(reply, TokenCountReply), reply
    return reply.tokens


def build_body(*blocks, **fields):
    return {"model": "claude-opus-5", "messages": [{"role": "user", "content": list(blocks)}], **fields}


def build_text_block(text):
    return {"type": "text", "text": text}


def test_count_word_pieces_is_near_a_real_tokenizer():
    """Without the real tokenizer the count of prose and code is at most 45% higher, and hardly ever lower."""
    pytest.importorskip("bpe_openai")
    for sample in (PROSE, CODE):
        assert 0.95 <= count_word_pieces(sample) / get_token_counter("o200k")(sample) <= 1.45


def test_get_token_counter_raises_for_a_missing_tokenizer():
    """The error says what to install, and ``auto`` falls back to word pieces."""
    counting._load_o200k.cache_clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(__import__("sys").modules, "bpe_openai", None)
            with pytest.raises(ConfigError, match="exact"):
                get_token_counter("o200k")
            assert get_token_counter("auto") is count_word_pieces
    finally:
        counting._load_o200k.cache_clear()


@given(st.text(), st.text())
def test_count_word_pieces_counts_any_text(first, other):
    """Two texts together have at least the tokens of the larger one."""
    assert count_word_pieces(first) >= 0
    assert count_word_pieces(f"{first}\n{other}") >= max(count_word_pieces(first), count_word_pieces(other))


def test_get_token_counter_counts_a_long_text_in_pieces():
    """The tokenizer alone would refuse the text for its length."""
    pytest.importorskip("bpe_openai")
    assert get_token_counter("o200k")("\u4f60 " * 60_000) > 60_000
    assert get_token_counter("o200k")("\ud83d") > 0


def test_token_factor_multiplies_and_rounds_up_once():
    """The factor applies to the sum of the whole request."""
    body = build_body(build_text_block(PROSE), build_text_block("x"))
    assert count_tokens("anthropic", body, factor=1.3) == -(-count_tokens("anthropic", body) * 13 // 10)


def test_token_count_covers_everything_the_model_reads():
    """System prompt, tools, names, arguments and results count; ids, signatures and breakpoints do not."""
    base_tokens = count_tokens("anthropic", build_body(build_text_block("x")))
    tool = {"name": "ls", "description": PROSE, "input_schema": {"type": "object"}}
    assert count_tokens("anthropic", build_body(build_text_block("x"), system=PROSE)) > base_tokens + 600
    assert count_tokens("anthropic", build_body(build_text_block("x"), tools=[tool])) > base_tokens + 600
    marked = build_text_block("x") | {"cache_control": {"type": "ephemeral"}}
    assert count_tokens("anthropic", build_body(marked)) == base_tokens
    for id_ in ("t", "t" * 200):
        call = {"type": "tool_use", "id": id_, "name": "ls", "input": {"path": PROSE}}
        result = {"type": "tool_result", "tool_use_id": id_, "content": PROSE}
        messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        body = {"model": "claude-opus-5", "messages": [{"role": "user", "content": "x"}, *messages]}
        assert count_tokens("anthropic", body) == count_tokens("anthropic", body | {"x": 1})
        assert 1_300 < count_tokens("anthropic", body) < 2_100


@pytest.mark.parametrize("factor", [1, 3])
def test_token_count_of_media_is_flat(factor):
    """An image or a document has the same tokens whatever its bytes, and its base64 is never text."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXELS * factor}
    picture = {"type": "image", "source": source}
    document = {"type": "document", "source": source | {"media_type": "application/pdf"}}
    base_tokens = count_tokens("anthropic", build_body(build_text_block("x")))
    text_document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": PROSE}}
    assert count_tokens("anthropic", build_body(build_text_block("x"), text_document)) > base_tokens + 600
    assert (
        count_tokens("anthropic", build_body(build_text_block("x"), picture))
        == base_tokens + counting.BLOCK_OVERHEAD + IMAGE_TOKENS["anthropic"]
    )
    assert (
        count_tokens("anthropic", build_body(build_text_block("x"), document))
        == base_tokens + counting.BLOCK_OVERHEAD + DOCUMENT_TOKENS
    )
    part = {"inlineData": {"mimeType": "image/png", "data": PIXELS * factor}}
    contents = {"contents": [{"parts": [{"text": "x"}]}]}
    contents_with_image = {"contents": [{"parts": [{"text": "x"}, part]}]}
    assert (
        count_tokens("gemini", contents_with_image)
        == count_tokens("gemini", contents) + counting.BLOCK_OVERHEAD + IMAGE_TOKENS["gemini"]
    )
    address = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXELS * factor}"}}
    chat = {"model": "gpt-5.5", "messages": [{"role": "user", "content": [build_text_block("x"), address]}]}
    assert count_tokens("openai-chat", chat) < 1_000


def test_token_count_is_the_same_for_a_string_and_a_text_block():
    """The JSON form of a text does not change its tokens."""
    body = {"model": "claude-opus-5", "messages": [{"role": "user", "content": PROSE}]}
    assert count_tokens("anthropic", body) == count_tokens("anthropic", build_body(build_text_block(PROSE)))


def test_token_count_of_encrypted_reasoning_ignores_its_summary():
    """Encrypted reasoning has the tokens of its text, with a summary beside it or without."""
    sizes = []
    for summary in (True, False):
        client = ProviderClient(
            Provider(ProviderSettings(tokenizer="words"), [ScriptedAnswer("y", (), PROSE)]),
            "openai-responses",
            store=False,
        )
        client.send_user_text("x")
        if not summary:
            client.history[1]["summary"] = []
        sizes.append(client.send_user_text("z").usage.total_input)
    assert sizes[0] == sizes[1]
    assert count_word_pieces(PROSE) < sizes[0] < count_word_pieces(PROSE) + 30


@given(st.lists(st.text(), max_size=8))
def test_sum_blocks_never_decreases(texts):
    """The tokens of a prefix are at most those of the whole."""
    blocks = split_into_blocks("anthropic", build_body(*(build_text_block(text) for text in texts)))
    sums = RequestCounter(count_word_pieces, 1.3).sum_blocks(blocks)
    assert len(sums) == len(texts) + 1
    assert sums == sorted(sums)
