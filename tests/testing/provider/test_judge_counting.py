"""Tokens of the strict provider: independent of our estimator, whole texts, media flat, rounded once."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.testing.provider.blocks import blocks
from holdfast.testing.provider.calls import Counted, Said
from holdfast.testing.provider.client import Client
from holdfast.testing.provider.judge import counting
from holdfast.testing.provider.judge.counting import Scale, counter, words
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.rendering import DOCUMENT, IMAGE
from holdfast.testing.provider.settings import Settings

PROSE = "The holdfast is the part of a kelp that keeps it on the rock, whatever the sea does. " * 40
CODE = "def _pieces(request: Request, sums: Sequence[int]) -> Iterator[tuple[bytes, int]]:\n    return iter(())\n" * 40
PIXELS = base64.b64encode(bytes(30_000)).decode()


def tokens(api, body, **fields):
    model = "gemini-3-pro" if api == "gemini" else ""
    reply = Provider(Settings(tokenizer="words", **fields)).ask(api, body, endpoint="count", model=model)
    assert isinstance(reply, Counted), reply
    return reply.tokens


def ask(*blocks, **fields):
    return {"model": "claude-opus-5", "messages": [{"role": "user", "content": list(blocks)}], **fields}


def text(words):
    return {"type": "text", "text": words}


def test_word_pieces_are_near_a_real_tokenizer():
    """Without the real tokenizer the count is some tenths higher on prose and code, never lower."""
    pytest.importorskip("bpe_openai")
    for sample in (PROSE, CODE):
        assert 0.95 <= words(sample) / counter("o200k")(sample) <= 1.45


def test_a_tokenizer_that_is_not_there_is_an_error():
    """Asking for the real tokenizer where it is not installed says what to install."""
    counting._o200k.cache_clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(__import__("sys").modules, "bpe_openai", None)
            with pytest.raises(ConfigError, match="exact"):
                counter("o200k")
            assert counter("auto") is words
    finally:
        counting._o200k.cache_clear()


@given(st.text(), st.text())
def test_any_text_has_a_count(one, other):
    """Any text is counted, and two texts have at least the tokens of the larger one."""
    assert words(one) >= 0
    assert words(f"{one}\n{other}") >= max(words(one), words(other))


def test_a_long_text_is_counted_in_pieces():
    """A text that the tokenizer would refuse for its length has a count."""
    pytest.importorskip("bpe_openai")
    assert counter("o200k")("\u4f60 " * 60_000) > 60_000
    assert counter("o200k")("\ud83d") > 0


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
    assert tokens("anthropic", ask(text("x"), picture)) == plain + counting.PER_BLOCK + IMAGE["anthropic"]
    assert tokens("anthropic", ask(text("x"), document)) == plain + counting.PER_BLOCK + DOCUMENT
    part = {"inlineData": {"mimeType": "image/png", "data": PIXELS * factor}}
    contents = {"contents": [{"parts": [{"text": "x"}]}]}
    both = {"contents": [{"parts": [{"text": "x"}, part]}]}
    assert tokens("gemini", both) == tokens("gemini", contents) + counting.PER_BLOCK + IMAGE["gemini"]
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
        client = Client(Provider(Settings(tokenizer="words"), [Said("y", (), PROSE)]), "openai-responses", store=False)
        client.say("x")
        if not summary:
            client.history[1]["summary"] = []
        sizes.append(client.say("z").usage.counted)
    assert sizes[0] == sizes[1]
    assert words(PROSE) < sizes[0] < words(PROSE) + 30


@given(st.lists(st.text(), max_size=8))
def test_sums_grow_with_every_piece(texts):
    """The tokens of a beginning are never more than those of the whole."""
    found = blocks("anthropic", ask(*(text(one) for one in texts)))
    sums = Scale(words, 1.3).sums(found)
    assert len(sums) == len(texts) + 1
    assert sums == sorted(sums)
