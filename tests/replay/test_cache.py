"""The simulated prompt cache, with figures counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Text, ToolCall, ToolResult
from holdfast.replay.cache import (
    SETUP_BREAKPOINT,
    CacheBlock,
    CacheUse,
    SimulatedCache,
    make_cache_blocks,
    price_request,
)
from holdfast.state.target import CacheRules, Prices

ANTHROPIC = CacheRules(ttl_seconds=300, min_prefix_tokens=1_000, lookback=20)
OPENAI = CacheRules(
    ttl_seconds=300, min_prefix_tokens=1_024, write_factor=1.0, lookback=None, is_automatic=True, step_tokens=128
)
IMPLICIT = CacheRules(ttl_seconds=1_800, min_prefix_tokens=1_000, lookback=None, is_automatic=True, step_tokens=0)
SETUP: CacheBlock = (b"setup", 2_000)


def make_blocks(names: str, tokens: int = 100) -> list[CacheBlock]:
    """Return a block for each letter of ``names``."""
    return [(name.encode(), tokens) for name in names]


def test_send_request_writes_up_to_its_breakpoint() -> None:
    """The first request reads nothing, writes the setup and two blocks, and the block behind the breakpoint is
    fresh.
    """
    assert SimulatedCache(ANTHROPIC).send_request(make_blocks("abc"), SETUP, [1], 0) == CacheUse(0, 2_200, 100)


def test_send_request_reads_the_written_prefix() -> None:
    """The next request reads the written prefix and writes what is new."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("ab"), SETUP, [1], 0)
    assert cache.send_request(make_blocks("abcd"), SETUP, [3], 1_000) == CacheUse(2_200, 200, 0)


def test_send_request_without_breakpoints_caches_nothing() -> None:
    """An explicit cache stores nothing without a breakpoint, however often the same request is sent."""
    cache = SimulatedCache(ANTHROPIC)
    assert [cache.send_request(make_blocks("ab"), SETUP, [], 0) for _ in range(2)] == [CacheUse(0, 0, 2_200)] * 2


def test_send_request_after_an_edit_reads_only_the_setup() -> None:
    """A changed block breaks the chain, so only the entry after the setup is still read."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("abc"), SETUP, [SETUP_BREAKPOINT, 2], 0)
    assert cache.send_request(make_blocks("aXc"), SETUP, [SETUP_BREAKPOINT, 2], 0) == CacheUse(2_000, 300, 0)


def test_send_request_reads_the_entry_before_an_edit() -> None:
    """An entry written before the edited block is read if a breakpoint can look back to it."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("abcd"), SETUP, [1, 3], 0)
    assert cache.send_request(make_blocks("abXd"), SETUP, [1, 3], 0) == CacheUse(2_200, 200, 0)


def test_send_request_with_another_setup_reads_nothing() -> None:
    """Setup and messages are one chain, so with other tools nothing is read."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("ab"), SETUP, [SETUP_BREAKPOINT, 1], 0)
    assert cache.send_request(make_blocks("ab"), (b"other", 2_000), [SETUP_BREAKPOINT, 1], 0) == CacheUse(0, 2_200, 0)


@pytest.mark.parametrize(("added", "read"), [(20, 2_100), (21, 0)])
def test_send_request_looks_back_20_blocks(added: int, read: int) -> None:
    """A breakpoint finds an entry 20 blocks back, and not one 21 blocks back."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("a"), SETUP, [0], 0)
    extended = make_blocks("a") + [(bytes([i]), 10) for i in range(added)]
    hit = cache.send_request(extended, SETUP, [added], 0)
    assert hit == CacheUse(read, 2_100 + 10 * added - read, 0)


def test_send_request_looks_back_from_each_breakpoint() -> None:
    """Thirty new blocks are too many for one breakpoint, and one half way finds the old entry."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("a"), SETUP, [0], 0)
    extended = make_blocks("a") + [(bytes([i]), 10) for i in range(30)]
    assert cache.send_request(extended, SETUP, [15, 30], 0) == CacheUse(2_100, 300, 0)


@pytest.mark.parametrize(("later", "read"), [(300_000, 2_100), (300_001, 0)])
def test_cache_entry_expires_after_its_ttl(later: int, read: int) -> None:
    """An entry is read up to 300 seconds after its last use."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("a"), SETUP, [0], 0)
    assert cache.send_request(make_blocks("a"), SETUP, [0], later).read == read


def test_cache_read_renews_the_ttl() -> None:
    """Each read starts the 300 seconds again."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("a"), SETUP, [0], 0)
    assert [cache.send_request(make_blocks("a"), SETUP, [0], at).read for at in (200_000, 400_000, 600_000)] == [
        2_100
    ] * 3


def test_send_request_without_a_time_finds_the_cache_warm() -> None:
    """A request without a time, or after a write without one, finds the cache warm."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(make_blocks("a"), SETUP, [0], 0)
    assert cache.send_request(make_blocks("a"), SETUP, [0], None).read == 2_100
    untimed = SimulatedCache(ANTHROPIC)
    untimed.send_request(make_blocks("a"), SETUP, [0], None)
    assert untimed.send_request(make_blocks("a"), SETUP, [0], 10**12).read == 2_100


@pytest.mark.parametrize(("size", "hit"), [(899, CacheUse(0, 0, 999)), (900, CacheUse(1_000, 0, 0))])
def test_send_request_ignores_prefixes_below_the_minimum(size: int, hit: CacheUse) -> None:
    """A prefix below the minimum size is silently not cached."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request([(b"a", 100)], (b"f", size), [0], 0)
    assert cache.send_request([(b"a", 100)], (b"f", size), [0], 0) == hit


def test_automatic_cache_reads_in_steps() -> None:
    """Without breakpoints 2,250 common tokens are read as 17 steps of 128, and the rest of the last step is fresh."""
    cache = SimulatedCache(OPENAI)
    assert cache.send_request(make_blocks("ab", 125), SETUP, [], 0) == CacheUse(0, 2_176, 74)
    assert cache.send_request(make_blocks("abc", 125), SETUP, [], 0) == CacheUse(2_176, 128, 71)


def test_automatic_cache_keeps_every_prefix() -> None:
    """After an edit in the middle the common start is still read, without a breakpoint there."""
    cache = SimulatedCache(OPENAI)
    cache.send_request(make_blocks("abcd", 1_000), SETUP, [], 0)
    assert cache.send_request(make_blocks("abXd", 1_000), SETUP, [], 0).read == 4_000 // 128 * 128


def test_automatic_cache_has_a_minimum_and_a_ttl() -> None:
    """Automatic caches have a minimum size and a lifetime too."""
    small = SimulatedCache(OPENAI)
    assert [small.send_request(make_blocks("a"), (b"f", 900), [], 0).read for _ in range(2)] == [0, 0]
    old = SimulatedCache(OPENAI)
    old.send_request(make_blocks("a"), SETUP, [], 0)
    assert old.send_request(make_blocks("a"), SETUP, [], 300_001).read == 0


def test_implicit_cache_has_a_breakpoint_at_each_end() -> None:
    """From gpt-5.6 the end of each request is a breakpoint without a look-back limit, and only ends are read."""
    cache = SimulatedCache(IMPLICIT)
    assert cache.send_request(make_blocks("a"), SETUP, [], 0) == CacheUse(0, 2_100, 0)
    extended = make_blocks("a") + [(bytes([i]), 10) for i in range(50)]
    assert cache.send_request(extended, SETUP, [], 0) == CacheUse(2_100, 500, 0)
    assert cache.send_request([*extended[:30], (b"X", 10)], SETUP, [], 0) == CacheUse(2_100, 300, 0)


def test_price_request_uses_one_price_per_kind() -> None:
    """The cost in dollars is tokens times the price of a million, each kind at its own price."""
    prices = Prices(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
    assert price_request(CacheUse(1_000_000, 200_000, 100_000), 10_000, prices) == pytest.approx(
        0.3 + 0.75 + 0.3 + 0.15
    )


requests = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abc"), max_size=6).map("".join),
        st.lists(st.integers(-1, 5), max_size=3),
        st.integers(0, 400_000),
    ),
    max_size=6,
)


@given(requests, st.sampled_from([ANTHROPIC, OPENAI, IMPLICIT]))
def test_send_request_counts_every_token_once(sent: list[tuple[str, list[int], int]], rules: CacheRules) -> None:
    """Read, written and fresh tokens are never negative and add up to the request."""
    cache = SimulatedCache(rules)
    for names, marks, at in sent:
        hit = cache.send_request(make_blocks(names), SETUP, marks, at)
        assert min(hit.read, hit.write, hit.fresh) >= 0
        assert hit.total == 2_000 + 100 * len(names)


@given(requests, st.sampled_from([ANTHROPIC, OPENAI, IMPLICIT]))
def test_send_request_with_a_remembered_chain_gives_the_same(
    sent: list[tuple[str, list[int], int]], rules: CacheRules
) -> None:
    """Skipping the blocks shared with the previous request gives the same result as checking every block."""
    remembering, forgetting = SimulatedCache(rules), SimulatedCache(rules)
    for names, marks, at in sent:
        forgetting._chain = []  # forget the previous request
        assert remembering.send_request(make_blocks(names), SETUP, marks, at) == forgetting.send_request(
            make_blocks(names), SETUP, marks, at
        )


def test_make_cache_blocks_makes_one_block_per_part() -> None:
    """A message has one block per part, the first includes the message's overhead, and equal text has equal digests."""
    message = Message("assistant", (Text("12345"), ToolCall("id", "read", "{}")))
    (first, five), (second, six) = make_cache_blocks(message, len)
    assert (five, six) == (5 + 8, 6)
    assert make_cache_blocks(Message("assistant", (Text("12345"),)), len) == [(first, 13)]
    assert first != second
    assert make_cache_blocks(Message("user", (Text("12345"),)), len)[0][0] != first


def test_make_cache_blocks_ignores_wire_bytes() -> None:
    """Two encodings of one part give the same block; an opaque part is identified by its bytes alone."""
    plain, with_bytes = Text("x"), Text("x", raw=Raw(b'{"type":"text","text":"x"}'))
    assert make_cache_blocks(Message("user", (plain,)), len) == make_cache_blocks(Message("user", (with_bytes,)), len)
    nested = [Message("tool", (ToolResult("c", "n", (part,)),)) for part in (plain, with_bytes)]
    assert make_cache_blocks(nested[0], len) == make_cache_blocks(nested[1], len)
    opaque = [Message("user", (Opaque("odd", Raw(raw)),)) for raw in (b"1", b"2")]
    assert make_cache_blocks(opaque[0], len) != make_cache_blocks(opaque[1], len)


def test_make_cache_blocks_of_an_empty_message_is_one_block() -> None:
    """A message without parts still costs its overhead."""
    assert [tokens for _, tokens in make_cache_blocks(Message("assistant"), len)] == [8]


def test_make_cache_blocks_takes_half_a_surrogate() -> None:
    """Tools leave one when they cut a text. It is content like any other: equal texts are one block, others are not."""
    halves = ["cut \ud83d here", "cut \ud83e here"]
    blocks = [make_cache_blocks(Message("user", (Text(half),)), len) for half in (*halves, halves[0])]
    assert blocks[0] == blocks[2]
    assert blocks[0] != blocks[1]
