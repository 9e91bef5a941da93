"""The prompt cache of the strict provider: reads and writes by the rules of each API."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.provider.cache import get_cache_rules
from holdfast.testing.provider.calls import ModelAnswer, ScriptedAnswer
from holdfast.testing.provider.client import ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

BREAKPOINT = {"type": "ephemeral"}
LONG = "lorem ipsum dolor sit amet " * 300
"""About 1,500 word pieces."""


class Clock:
    """A clock that only moves when its ``now`` is set."""

    now = 0.0

    def __call__(self):
        return self.now


def build_provider(clock=None, script=(), **fields):
    return Provider(ProviderSettings(tokenizer="words", **fields), script, clock)


def build_marked_body(*texts, at=(), ttl=None):
    """Return a Messages body with one user message and breakpoints on the blocks ``at``."""
    blocks = [{"type": "text", "text": text} for text in texts]
    for index in at:
        blocks[index]["cache_control"] = BREAKPOINT | ({"ttl": ttl} if ttl else {})
    return {"model": "claude-opus-5-5", "max_tokens": 10, "messages": [{"role": "user", "content": blocks}]}


def get_cache_usage(reply):
    assert isinstance(reply, ModelAnswer), reply
    return reply.usage.cache_read, reply.usage.cache_write


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def test_breakpoint_writes_the_prefix_and_the_next_request_reads_it():
    """The prefix before a breakpoint is written once and read afterwards; the rest is neither."""
    provider = build_provider()
    first = provider.answer_body("anthropic", build_marked_body(LONG, "x", at=[0])).usage
    assert (first.cache_read, first.input) == (0, first.total_input - first.cache_write)
    assert first.cache_write >= 1_024 > first.input > 0
    second = provider.answer_body("anthropic", build_marked_body(LONG, "y", at=[0])).usage
    assert (second.cache_read, second.cache_write) == (first.cache_write, 0)


def test_prefix_without_breakpoint_or_under_the_minimum_is_not_cached():
    """A prefix under the model's minimum is neither written nor read."""
    provider = build_provider()
    for body in (build_marked_body(LONG), build_marked_body("short", at=[0])):
        assert [get_cache_usage(provider.answer_body("anthropic", body)) for _ in range(2)] == [(0, 0)] * 2
    without_minimum = build_provider(cache_minimum=1)
    assert get_cache_usage(without_minimum.answer_body("anthropic", build_marked_body("short", at=[0])))[1] > 0
    assert get_cache_usage(
        build_provider(has_cache=False).answer_body("anthropic", build_marked_body(LONG, at=[0]))
    ) == (0, 0)


@pytest.mark.parametrize(("between", "is_hit"), [(18, True), (19, True), (20, False)])
def test_breakpoint_looks_back_twenty_blocks(between, is_hit):
    """An entry more than 20 blocks back, the breakpoint included, is missed silently."""
    provider = build_provider()
    write = get_cache_usage(provider.answer_body("anthropic", build_marked_body(LONG, at=[0])))[1]
    more = [f"block {number}" for number in range(between)]
    read, _ = get_cache_usage(provider.answer_body("anthropic", build_marked_body(LONG, *more, at=[between])))
    assert (read == write) is is_hit


def test_each_breakpoint_looks_back_on_its_own():
    """A second breakpoint finds an entry that is out of reach of the last one."""
    provider = build_provider()
    write = get_cache_usage(provider.answer_body("anthropic", build_marked_body(LONG, at=[0])))[1]
    more = [f"block {number}" for number in range(25)]
    assert get_cache_usage(provider.answer_body("anthropic", build_marked_body(LONG, *more, at=[15, 25])))[0] == write


def test_cache_entry_expires_five_minutes_after_its_last_use():
    """A read renews an entry; with ttl 1h it lives an hour and is counted apart."""
    clock = Clock()
    provider = build_provider(clock)
    body, hour_body = build_marked_body(LONG, at=[0]), build_marked_body("hour " + LONG, at=[0], ttl="1h")
    write = get_cache_usage(provider.answer_body("anthropic", body))[1]
    hour_usage = provider.answer_body("anthropic", hour_body).usage
    assert hour_usage.cache_write_1h == hour_usage.cache_write > 0
    for clock.now in (299.0, 598.0):
        assert get_cache_usage(provider.answer_body("anthropic", body)) == (write, 0)
    clock.now = 898.0
    assert get_cache_usage(provider.answer_body("anthropic", body)) == (0, write)
    clock.now = 3_599.0
    assert get_cache_usage(provider.answer_body("anthropic", hour_body))[0] == hour_usage.cache_write


def test_cache_entry_is_renewed_by_a_read_through_the_look_back():
    """The entry is renewed even though no breakpoint stands at its end any more."""
    clock = Clock()
    provider = build_provider(clock)
    write = get_cache_usage(provider.answer_body("anthropic", build_marked_body(LONG, at=[0])))[1]
    for clock.now, last_text in ((200.0, "x"), (400.0, "y")):
        assert (
            get_cache_usage(provider.answer_body("anthropic", build_marked_body(LONG, last_text, at=[1])))[0] == write
        )


def test_breakpoint_inside_a_tool_result_counts_for_the_result():
    """A block inside a tool result can carry the breakpoint of the result."""
    call = {"type": "tool_use", "id": "t", "name": "ls", "input": {}}
    inner = {"type": "text", "text": LONG, "cache_control": BREAKPOINT}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [inner]}
    turns = [("user", "x"), ("assistant", [call]), ("user", [result])]
    body = build_marked_body() | {"messages": [{"role": role, "content": content} for role, content in turns]}
    assert get_cache_usage(build_provider().answer_body("anthropic", body))[1] > 1_024


def test_cache_writes_are_counted_by_lifetime():
    """The prefix up to the last 1h breakpoint counts for an hour, the rest for five minutes."""
    body = build_marked_body(LONG, LONG, at=[0, 1])
    body["messages"][0]["content"][0]["cache_control"] = BREAKPOINT | {"ttl": "1h"}
    used = build_provider().answer_body("anthropic", body).usage
    assert 0 < used.cache_write_1h < used.cache_write


def test_cache_prefix_is_tools_then_system_then_messages():
    """Other tools miss everything, another system keeps the tools, tool_choice and thinking keep both."""
    provider = build_provider()
    tool = {"name": "ls", "description": LONG, "input_schema": {"type": "object"}, "cache_control": BREAKPOINT}
    system = [{"type": "text", "text": LONG, "cache_control": BREAKPOINT}]
    body = build_marked_body(LONG, at=[0]) | {"tools": [tool], "system": system}
    all_tokens = get_cache_usage(provider.answer_body("anthropic", body))[1]
    tools_only = get_cache_usage(
        provider.answer_body("anthropic", body | {"system": [system[0] | {"text": "s" + LONG}]})
    )[0]
    tools_and_system = get_cache_usage(provider.answer_body("anthropic", body | {"tool_choice": {"type": "none"}}))[0]
    assert (
        get_cache_usage(provider.answer_body("anthropic", body | {"thinking": {"type": "adaptive"}}))[0]
        == tools_and_system
    )
    assert 1_024 < tools_only < tools_and_system < all_tokens
    assert get_cache_usage(provider.answer_body("anthropic", body | {"tools": [tool | {"name": "cat"}]}))[0] == 0
    assert get_cache_usage(provider.answer_body("anthropic", body | {"model": "claude-sonnet-5-5"}))[0] == 0
    assert get_cache_usage(provider.answer_body("anthropic", body)) == (all_tokens, 0)


@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.strip), min_size=2, max_size=9)
)
def test_request_that_extends_the_last_reads_it_with_a_breakpoint(texts):
    """Request n+1 reads exactly the tokens of request n when they are over the minimum."""
    client = ProviderClient(build_provider(cache_minimum=30), "anthropic", cache_control=BREAKPOINT)
    last_tokens = 0
    for text in texts:
        reply = client.send_user_text(text)
        assert reply.usage.cache_read == (last_tokens if last_tokens >= 30 else 0)
        last_tokens = reply.usage.total_input


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=2, max_size=9)


@given(TEXTS, st.sampled_from([("openai-chat", 128), ("openai-responses", 128), ("gemini", 1)]))
def test_request_that_extends_the_last_reads_it_without_breakpoints(texts, api_and_step):
    """The other APIs read the previous request too, in the steps of the API."""
    api, step = api_and_step
    client = ProviderClient(build_provider(cache_minimum=30), api)
    last_tokens = 0
    for text in texts:
        reply = client.send_user_text(text)
        read = last_tokens - last_tokens % step
        assert reply.usage.cache_read == (read if read >= 30 else 0)
        last_tokens = reply.usage.total_input


def test_edit_in_the_middle_reads_up_to_the_newest_entry_before_it():
    """A changed block costs only the tokens behind that entry."""
    client = ProviderClient(
        build_provider(cache_minimum=1), "anthropic", cache_control=BREAKPOINT, model="claude-opus-5"
    )
    sizes = [client.send_user_text(f"turn {number}").usage.total_input for number in range(4)]
    client.history[4]["content"] = "changed"
    assert client.send_user_text("next").usage.cache_read == sizes[1]


def test_cache_misses_on_older_models_that_strip_thinking():
    """Models up to Sonnet 4.5 drop thinking of earlier turns at the next user message, so the cache misses."""
    for model, hits in (("claude-sonnet-4-5", False), ("claude-sonnet-5", True)):
        script = [ScriptedAnswer("", (("ls", {}),), LONG), ScriptedAnswer("done"), ScriptedAnswer("more")]
        client = ProviderClient(
            build_provider(script=script), "anthropic", tools=["ls"], model=model, cache_control=BREAKPOINT
        )
        client.body["max_tokens"] = 8_000
        before = client.send_results(client.send_user_text("go")).usage
        after = client.send_user_text("on").usage
        assert (after.cache_read == before.total_input) is hits
        assert (after.total_input > before.total_input) is hits


# -- implicit caches ---------------------------------------------------------------------------------------------------


def build_chat_body(*texts, **fields):
    return {"model": "gpt-4.1", "messages": [{"role": "user", "content": text} for text in texts], **fields}


def test_openai_cache_is_implicit_in_steps_of_128():
    """From 1,024 tokens on, the shared prefix is read, also within a message, and no writes are reported."""
    provider = build_provider()
    assert get_cache_usage(provider.answer_body("openai-chat", build_chat_body(LONG))) == (0, 0)
    read, write = get_cache_usage(provider.answer_body("openai-chat", build_chat_body(LONG, "more")))
    assert (read % 128, write) == (0, 0)
    assert read >= 1_024
    longer = LONG + LONG
    provider.answer_body("openai-chat", build_chat_body(longer))
    half = get_cache_usage(
        provider.answer_body("openai-chat", build_chat_body(longer[: len(longer) * 3 // 4] + "other"))
    )[0]
    assert half > read
    assert get_cache_usage(provider.answer_body("openai-chat", build_chat_body("x" + LONG)))[0] == 0
    assert get_cache_usage(build_provider().answer_body("openai-chat", build_chat_body("short")))[0] == 0


def test_openai_cache_is_separate_for_each_prompt_cache_key():
    """Requests with different keys share no cache."""
    provider = build_provider()
    provider.answer_body("openai-chat", build_chat_body(LONG, prompt_cache_key="a"))
    assert get_cache_usage(provider.answer_body("openai-chat", build_chat_body(LONG, prompt_cache_key="b")))[0] == 0
    assert get_cache_usage(provider.answer_body("openai-chat", build_chat_body(LONG, prompt_cache_key="a")))[0] > 0


def test_openai_cache_reports_writes_from_gpt_5_6():
    """The end of each request is kept for half an hour, and new tokens are reported as written."""
    clock = Clock()
    client = ProviderClient(build_provider(clock), "openai-responses", model="gpt-5.6", instructions=LONG)
    first = client.send_user_text("go").usage
    assert (first.cache_read, first.cache_write) == (0, first.total_input)
    other = client.provider.answer_body("openai-responses", client.body | {"input": "other"}).usage
    assert other.cache_read == 0
    clock.now = 1_799.0
    second = client.send_user_text("on").usage
    assert (second.cache_read, second.cache_write) == (first.total_input, second.total_input - first.total_input)
    clock.now += 1_801.0
    assert client.send_user_text("late").usage.cache_read == 0


def test_gemini_cache_is_implicit_from_the_minimum_of_the_model():
    """The minimum is 4,096 tokens on Pro and 1,024 on Flash, and writes are free."""
    for model, hits in (("gemini-3-pro", False), ("gemini-3-flash", True)):
        client = ProviderClient(build_provider(), "gemini", model=model)
        client.send_user_text(LONG)
        reply = client.send_user_text("more")
        assert (reply.usage.cache_read >= 1_024, reply.usage.cache_write) == (hits, 0)


@pytest.mark.parametrize(
    ("model", "minimum"),
    [
        ("claude-opus-5", 512),
        ("claude-fable-5-1", 512),
        ("claude-opus-5-5", 1024),
        ("claude-sonnet-4-5", 1024),
        ("claude-opus-4-7", 2048),
        ("claude-opus-4-5-20251101", 4096),
        ("claude-haiku-4-5", 4096),
    ],
)
def test_get_cache_rules_has_the_minimum_of_each_model(model, minimum):
    """The shortest cached prefix differs between models of one family."""
    assert get_cache_rules("anthropic", model).minimum == minimum
