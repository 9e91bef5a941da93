"""Tokens of the strict provider: independent of our estimator, whole texts, media flat, rounded once."""

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


def tokens(api, body, **fields):
    model = "gemini-3-pro" if api == "gemini" else ""
    reply = Provider(ProviderSettings(tokenizer="words", **fields)).answer_body(
        api, body, endpoint="count", model=model
    )
    assert isinstance(reply, TokenCountReply), reply
    return reply.tokens


def ask(*blocks, **fields):
    return {"model": "claude-opus-5", "messages": [{"role": "user", "content": list(blocks)}], **fields}


def text(words):
    return {"type": "text", "text": words}


def test_word_pieces_are_near_a_real_tokenizer():
    """Without the real tokenizer the count is some tenths higher on prose and code, never lower."""
    pytest.importorskip("bpe_openai")
    for sample in (PROSE, CODE):
        assert 0.95 <= count_word_pieces(sample) / get_token_counter("o200k")(sample) <= 1.45


def test_a_tokenizer_that_is_not_there_is_an_error():
    """Asking for the real tokenizer where it is not installed says what to install."""
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
def test_any_text_has_a_count(one, other):
    """Any text is counted, and two texts have at least the tokens of the larger one."""
    assert count_word_pieces(one) >= 0
    assert count_word_pieces(f"{one}\n{other}") >= max(count_word_pieces(one), count_word_pieces(other))


def test_a_long_text_is_counted_in_pieces():
    """A text that the tokenizer would refuse for its length has a count."""
    pytest.importorskip("bpe_openai")
    assert get_token_counter("o200k")("\u4f60 " * 60_000) > 60_000
    assert get_token_counter("o200k")("\ud83d") > 0


def test_the_factor_makes_other_tokens():
    """All is multiplied and rounded up once, at the end."""
    body = ask(text(PROSE), text("x"))
    assert tokens("anthropic", body, factor=1.3) == -(-tokens("anthropic", body) * 13 // 10)


def test_all_that_the_model_reads_is_counted():
    """System, tools, names, arguments and results count; ids, signatures and breakpoints do not."""
    plain = tokens("anthropic", ask(text("x")))
    tool = {"name": "ls", "description": PROSE, "input_schema": {"type": "object"}}
    assert tokens("anthropic", ask(text("x"), system=PROSE)) > plain + 600
    assert tokens("anthropic", ask(text("x"), tools=[tool])) > plain + 600
    marked = text("x") | {"cache_control": {"type": "ephemeral"}}
    assert tokens("anthropic", ask(marked)) == plain
    for id_ in ("t", "t" * 200):
        call = {"type": "tool_use", "id": id_, "name": "ls", "input": {"path": PROSE}}
        result = {"type": "tool_result", "tool_use_id": id_, "content": PROSE}
        said = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        body = {"model": "claude-opus-5", "messages": [{"role": "user", "content": "x"}, *said]}
        assert tokens("anthropic", body) == tokens("anthropic", body | {"x": 1})
        assert 1_300 < tokens("anthropic", body) < 2_100


@pytest.mark.parametrize("factor", [1, 3])
def test_media_are_counted_flat(factor):
    """An image or a document has the same tokens whatever its bytes are; their base64 is never text."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXELS * factor}
    picture = {"type": "image", "source": source}
    document = {"type": "document", "source": source | {"media_type": "application/pdf"}}
    plain = tokens("anthropic", ask(text("x")))
    written = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": PROSE}}
    assert tokens("anthropic", ask(text("x"), written)) > plain + 600
    assert tokens("anthropic", ask(text("x"), picture)) == plain + counting.BLOCK_OVERHEAD + IMAGE_TOKENS["anthropic"]
    assert tokens("anthropic", ask(text("x"), document)) == plain + counting.BLOCK_OVERHEAD + DOCUMENT_TOKENS
    part = {"inlineData": {"mimeType": "image/png", "data": PIXELS * factor}}
    contents = {"contents": [{"parts": [{"text": "x"}]}]}
    both = {"contents": [{"parts": [{"text": "x"}, part]}]}
    assert tokens("gemini", both) == tokens("gemini", contents) + counting.BLOCK_OVERHEAD + IMAGE_TOKENS["gemini"]
    address = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXELS * factor}"}}
    chat = {"model": "gpt-5.5", "messages": [{"role": "user", "content": [text("x"), address]}]}
    assert tokens("openai-chat", chat) < 1_000


def test_the_same_words_have_the_same_count_in_a_string_and_in_blocks():
    """How a text is spelled in JSON does not change its tokens."""
    body = {"model": "claude-opus-5", "messages": [{"role": "user", "content": PROSE}]}
    assert tokens("anthropic", body) == tokens("anthropic", ask(text(PROSE)))


def test_hidden_reasoning_is_counted_once():
    """Encrypted reasoning has the tokens of its words, with its summary beside it or alone."""
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
def test_sums_grow_with_every_piece(texts):
    """The tokens of a beginning are never more than those of the whole."""
    found = split_into_blocks("anthropic", ask(*(text(one) for one in texts)))
    sums = RequestCounter(count_word_pieces, 1.3).sum_blocks(found)
    assert len(sums) == len(texts) + 1
    assert sums == sorted(sums)
