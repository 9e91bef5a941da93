"""The simulated prompt cache, counted by hand."""

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
SYSTEM: CacheBlock = (b"frame", 2_000)


def some(names: str, tokens: int = 100) -> list[CacheBlock]:
    """Return a block for each letter of ``names``."""
    return [(name.encode(), tokens) for name in names]


def test_first_request_writes_up_to_its_breakpoint() -> None:
    """Nothing is read at first; frame and two blocks are written, the block behind the breakpoint is fresh."""
    assert SimulatedCache(ANTHROPIC).send_request(some("abc"), SYSTEM, [1], 0) == CacheUse(0, 2_200, 100)


def test_an_extension_reads_what_was_written() -> None:
    """The next request reads the written prefix and writes what is new."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("ab"), SYSTEM, [1], 0)
    assert cache.send_request(some("abcd"), SYSTEM, [3], 1_000) == CacheUse(2_200, 200, 0)


def test_without_breakpoints_nothing_is_cached() -> None:
    """An explicit cache does nothing by itself, however often the same request comes."""
    cache = SimulatedCache(ANTHROPIC)
    assert [cache.send_request(some("ab"), SYSTEM, [], 0) for _ in range(2)] == [CacheUse(0, 0, 2_200)] * 2


def test_an_edit_in_the_middle_loses_what_follows() -> None:
    """A changed block breaks the chain: only the entry behind the frame is still read."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("abc"), SYSTEM, [SETUP_BREAKPOINT, 2], 0)
    assert cache.send_request(some("aXc"), SYSTEM, [SETUP_BREAKPOINT, 2], 0) == CacheUse(2_000, 300, 0)


def test_a_breakpoint_at_the_frontier_saves_the_prefix() -> None:
    """An entry written in front of the edit is read, if a breakpoint can look back to it."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("abcd"), SYSTEM, [1, 3], 0)
    assert cache.send_request(some("abXd"), SYSTEM, [1, 3], 0) == CacheUse(2_200, 200, 0)


def test_another_frame_loses_all() -> None:
    """Frame and messages are one chain: other tools, nothing read."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("ab"), SYSTEM, [SETUP_BREAKPOINT, 1], 0)
    assert cache.send_request(some("ab"), (b"other", 2_000), [SETUP_BREAKPOINT, 1], 0) == CacheUse(0, 2_200, 0)


@pytest.mark.parametrize(("added", "read"), [(20, 2_100), (21, 0)])
def test_lookback(added: int, read: int) -> None:
    """A breakpoint finds an entry 20 blocks back, not 21."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("a"), SYSTEM, [0], 0)
    grown = some("a") + [(bytes([i]), 10) for i in range(added)]
    hit = cache.send_request(grown, SYSTEM, [added], 0)
    assert hit == CacheUse(read, 2_100 + 10 * added - read, 0)


def test_a_second_breakpoint_looks_back_from_its_own_place() -> None:
    """Thirty new blocks are too many for one breakpoint; one half way finds the old entry."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("a"), SYSTEM, [0], 0)
    grown = some("a") + [(bytes([i]), 10) for i in range(30)]
    assert cache.send_request(grown, SYSTEM, [15, 30], 0) == CacheUse(2_100, 300, 0)


@pytest.mark.parametrize(("later", "read"), [(300_000, 2_100), (300_001, 0)])
def test_an_entry_lives_as_long_as_its_ttl(later: int, read: int) -> None:
    """An entry is read up to 300 seconds after its last use."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("a"), SYSTEM, [0], 0)
    assert cache.send_request(some("a"), SYSTEM, [0], later).read == read


def test_reading_refreshes() -> None:
    """Each read starts the 300 seconds anew."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("a"), SYSTEM, [0], 0)
    assert [cache.send_request(some("a"), SYSTEM, [0], at).read for at in (200_000, 400_000, 600_000)] == [2_100] * 3


def test_a_missing_time_counts_as_warm() -> None:
    """A request without a time finds the cache warm, and so does one that follows a cache written without a time."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request(some("a"), SYSTEM, [0], 0)
    assert cache.send_request(some("a"), SYSTEM, [0], None).read == 2_100
    untimed = SimulatedCache(ANTHROPIC)
    untimed.send_request(some("a"), SYSTEM, [0], None)
    assert untimed.send_request(some("a"), SYSTEM, [0], 10**12).read == 2_100


@pytest.mark.parametrize(("size", "hit"), [(899, CacheUse(0, 0, 999)), (900, CacheUse(1_000, 0, 0))])
def test_minimum(size: int, hit: CacheUse) -> None:
    """A prefix below the minimum is silently not cached."""
    cache = SimulatedCache(ANTHROPIC)
    cache.send_request([(b"a", 100)], (b"f", size), [0], 0)
    assert cache.send_request([(b"a", 100)], (b"f", size), [0], 0) == hit


def test_automatic_caches_read_in_steps() -> None:
    """Without breakpoints 2,250 tokens in common are read as 17 steps of 128; the rest up to a step is new there."""
    cache = SimulatedCache(OPENAI)
    assert cache.send_request(some("ab", 125), SYSTEM, [], 0) == CacheUse(0, 2_176, 74)
    assert cache.send_request(some("abc", 125), SYSTEM, [], 0) == CacheUse(2_176, 128, 71)


def test_automatic_caches_keep_every_prefix() -> None:
    """After an edit in the middle the common start is still read, without any breakpoint there."""
    cache = SimulatedCache(OPENAI)
    cache.send_request(some("abcd", 1_000), SYSTEM, [], 0)
    assert cache.send_request(some("abXd", 1_000), SYSTEM, [], 0).read == 4_000 // 128 * 128


def test_automatic_minimum_and_ttl() -> None:
    """Automatic caches have a minimum and a lifetime too."""
    small = SimulatedCache(OPENAI)
    assert [small.send_request(some("a"), (b"f", 900), [], 0).read for _ in range(2)] == [0, 0]
    old = SimulatedCache(OPENAI)
    old.send_request(some("a"), SYSTEM, [], 0)
    assert old.send_request(some("a"), SYSTEM, [], 300_001).read == 0


def test_implicit_breakpoint_at_the_end() -> None:
    """From gpt-5.6 the end of each request is a breakpoint without a look-back limit, and only ends are read."""
    cache = SimulatedCache(IMPLICIT)
    assert cache.send_request(some("a"), SYSTEM, [], 0) == CacheUse(0, 2_100, 0)
    grown = some("a") + [(bytes([i]), 10) for i in range(50)]
    assert cache.send_request(grown, SYSTEM, [], 0) == CacheUse(2_100, 500, 0)
    assert cache.send_request([*grown[:30], (b"X", 10)], SYSTEM, [], 0) == CacheUse(2_100, 300, 0)


def test_cost() -> None:
    """Dollars are tokens times the price of a million, each kind at its own price."""
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
def test_every_token_is_counted_once(sent: list[tuple[str, list[int], int]], rules: CacheRules) -> None:
    """Whatever is sent, read, written and fresh tokens are not negative and add up to the request."""
    cache = SimulatedCache(rules)
    for names, marks, at in sent:
        hit = cache.send_request(some(names), SYSTEM, marks, at)
        assert min(hit.read, hit.write, hit.fresh) >= 0
        assert hit.total == 2_000 + 100 * len(names)


@given(requests, st.sampled_from([ANTHROPIC, OPENAI, IMPLICIT]))
def test_remembered_chains_change_nothing(sent: list[tuple[str, list[int], int]], rules: CacheRules) -> None:
    """The short way over the blocks shared with the request before gives what a look at every block gives."""
    short, whole = SimulatedCache(rules), SimulatedCache(rules)
    for names, marks, at in sent:
        whole._chain = []  # forget the request before
        assert short.send_request(some(names), SYSTEM, marks, at) == whole.send_request(some(names), SYSTEM, marks, at)


def test_a_part_is_a_block() -> None:
    """A message has as many blocks as parts; the first carries the message's overhead; equal words, equal digests."""
    message = Message("assistant", (Text("12345"), ToolCall("id", "read", "{}")))
    (first, five), (second, six) = make_cache_blocks(message, len)
    assert (five, six) == (5 + 8, 6)
    assert make_cache_blocks(Message("assistant", (Text("12345"),)), len) == [(first, 13)]
    assert first != second
    assert make_cache_blocks(Message("user", (Text("12345"),)), len)[0][0] != first


def test_wire_bytes_do_not_change_a_block() -> None:
    """Two spellings of one part are one block; an unknown part is known by its bytes alone."""
    plain, spelt = Text("x"), Text("x", raw=Raw(b'{"type":"text","text":"x"}'))
    assert make_cache_blocks(Message("user", (plain,)), len) == make_cache_blocks(Message("user", (spelt,)), len)
    inside = [Message("tool", (ToolResult("c", "n", (part,)),)) for part in (plain, spelt)]
    assert make_cache_blocks(inside[0], len) == make_cache_blocks(inside[1], len)
    odd = [Message("user", (Opaque("odd", Raw(raw)),)) for raw in (b"1", b"2")]
    assert make_cache_blocks(odd[0], len) != make_cache_blocks(odd[1], len)


def test_an_empty_message_is_one_block() -> None:
    """A message without parts still costs its overhead."""
    assert [tokens for _, tokens in make_cache_blocks(Message("assistant"), len)] == [8]
