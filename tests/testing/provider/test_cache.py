"""The prompt cache of the strict provider: what is read and written, by the rules of each API."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.provider.cache import get_cache_rules
from holdfast.testing.provider.calls import ModelAnswer, ScriptedAnswer
from holdfast.testing.provider.client import ProviderClient
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.settings import ProviderSettings

AUTO = {"type": "ephemeral"}
LONG = "lorem ipsum dolor sit amet " * 300
"""Some 1,500 word pieces."""


class Clock:
    """A clock that stands still until it is moved."""

    now = 0.0

    def __call__(self):
        return self.now


def provider(clock=None, script=(), **fields):
    return Provider(ProviderSettings(tokenizer="words", **fields), script, clock)


def marked(*texts, at=(), ttl=None):
    """Return a Messages body with one user message, breakpoints on the blocks ``at``."""
    blocks = [{"type": "text", "text": text} for text in texts]
    for index in at:
        blocks[index]["cache_control"] = AUTO | ({"ttl": ttl} if ttl else {})
    return {"model": "claude-opus-5-5", "max_tokens": 10, "messages": [{"role": "user", "content": blocks}]}


def usage(reply):
    assert isinstance(reply, ModelAnswer), reply
    return reply.usage.cache_read, reply.usage.cache_write


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def test_a_breakpoint_writes_and_the_next_request_reads():
    """What stands before a breakpoint is written once, read afterwards; what stands behind is neither."""
    one = provider()
    first = one.answer_body("anthropic", marked(LONG, "x", at=[0])).usage
    assert (first.cache_read, first.input) == (0, first.total_input - first.cache_write)
    assert first.cache_write >= 1_024 > first.input > 0
    second = one.answer_body("anthropic", marked(LONG, "y", at=[0])).usage
    assert (second.cache_read, second.cache_write) == (first.cache_write, 0)


def test_nothing_is_cached_without_a_breakpoint_or_under_the_minimum():
    """No breakpoint, no cache; and a prefix under the model's minimum is neither written nor read."""
    one = provider()
    for body in (marked(LONG), marked("short", at=[0])):
        assert [usage(one.answer_body("anthropic", body)) for _ in range(2)] == [(0, 0)] * 2
    least = provider(cache_minimum=1)
    assert usage(least.answer_body("anthropic", marked("short", at=[0])))[1] > 0
    assert usage(provider(has_cache=False).answer_body("anthropic", marked(LONG, at=[0]))) == (0, 0)


@pytest.mark.parametrize(("between", "hits"), [(18, True), (19, True), (20, False)])
def test_twenty_blocks_are_looked_back(between, hits):
    """A breakpoint sees entries at most 20 blocks back, itself counted; a turn that adds more misses in silence."""
    one = provider()
    write = usage(one.answer_body("anthropic", marked(LONG, at=[0])))[1]
    more = [f"block {number}" for number in range(between)]
    read, _ = usage(one.answer_body("anthropic", marked(LONG, *more, at=[between])))
    assert (read == write) is hits


def test_a_second_breakpoint_finds_what_the_last_does_not():
    """Each breakpoint looks back on its own."""
    one = provider()
    write = usage(one.answer_body("anthropic", marked(LONG, at=[0])))[1]
    more = [f"block {number}" for number in range(25)]
    assert usage(one.answer_body("anthropic", marked(LONG, *more, at=[15, 25])))[0] == write


def test_an_entry_lives_five_minutes_from_its_last_use():
    """A read keeps an entry alive; five idle minutes end it; one hour with ttl 1h, counted apart."""
    clock = Clock()
    one = provider(clock)
    body, hour = marked(LONG, at=[0]), marked("hour " + LONG, at=[0], ttl="1h")
    write = usage(one.answer_body("anthropic", body))[1]
    kept = one.answer_body("anthropic", hour).usage
    assert kept.cache_write_1h == kept.cache_write > 0
    for clock.now in (299.0, 598.0):
        assert usage(one.answer_body("anthropic", body)) == (write, 0)
    clock.now = 898.0
    assert usage(one.answer_body("anthropic", body)) == (0, write)
    clock.now = 3_599.0
    assert usage(one.answer_body("anthropic", hour))[0] == kept.cache_write


def test_a_read_through_the_look_back_keeps_the_entry_alive():
    """An entry found behind a breakpoint is refreshed by the read, though no breakpoint stands there any more."""
    clock = Clock()
    one = provider(clock)
    write = usage(one.answer_body("anthropic", marked(LONG, at=[0])))[1]
    for clock.now, last in ((200.0, "x"), (400.0, "y")):
        assert usage(one.answer_body("anthropic", marked(LONG, last, at=[1])))[0] == write


def test_a_breakpoint_inside_a_result_counts():
    """A breakpoint on a block inside a tool result is one on the result."""
    call = {"type": "tool_use", "id": "t", "name": "ls", "input": {}}
    inner = {"type": "text", "text": LONG, "cache_control": AUTO}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [inner]}
    said = [("user", "x"), ("assistant", [call]), ("user", [result])]
    body = marked() | {"messages": [{"role": role, "content": content} for role, content in said]}
    assert usage(provider().answer_body("anthropic", body))[1] > 1_024


def test_writes_are_counted_by_their_lifetime():
    """What lies before the last 1h breakpoint is written for an hour, what lies behind it for five minutes."""
    body = marked(LONG, LONG, at=[0, 1])
    body["messages"][0]["content"][0]["cache_control"] = AUTO | {"ttl": "1h"}
    used = provider().answer_body("anthropic", body).usage
    assert 0 < used.cache_write_1h < used.cache_write


def test_the_prompt_is_tools_then_system_then_messages():
    """Other tools miss everything, another system keeps the tools, tool_choice and thinking keep tools and system."""
    one = provider()
    tool = {"name": "ls", "description": LONG, "input_schema": {}, "cache_control": AUTO}
    system = [{"type": "text", "text": LONG, "cache_control": AUTO}]
    body = marked(LONG, at=[0]) | {"tools": [tool], "system": system}
    whole = usage(one.answer_body("anthropic", body))[1]
    tools = usage(one.answer_body("anthropic", body | {"system": [system[0] | {"text": "s" + LONG}]}))[0]
    frame = usage(one.answer_body("anthropic", body | {"tool_choice": {"type": "any"}}))[0]
    assert usage(one.answer_body("anthropic", body | {"thinking": {"type": "adaptive"}}))[0] == frame
    assert 1_024 < tools < frame < whole
    assert usage(one.answer_body("anthropic", body | {"tools": [tool | {"name": "cat"}]}))[0] == 0
    assert usage(one.answer_body("anthropic", body | {"model": "claude-sonnet-5-5"}))[0] == 0
    assert usage(one.answer_body("anthropic", body)) == (whole, 0)


@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.strip), min_size=2, max_size=9)
)
def test_a_request_that_extends_the_last_reads_it(texts):
    """With a breakpoint at the end, request n+1 reads exactly what request n had, when that is over the minimum."""
    client = ProviderClient(provider(cache_minimum=30), "anthropic", cache_control=AUTO)
    last = 0
    for text in texts:
        reply = client.send_user_text(text)
        assert reply.usage.cache_read == (last if last >= 30 else 0)
        last = reply.usage.total_input


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=2, max_size=9)


@given(TEXTS, st.sampled_from([("openai-chat", 128), ("openai-responses", 128), ("gemini", 1)]))
def test_a_request_that_extends_the_last_reads_it_by_itself(texts, kind):
    """Without breakpoints too, in the steps of the API."""
    api, step = kind
    client = ProviderClient(provider(cache_minimum=30), api)
    last = 0
    for text in texts:
        reply = client.send_user_text(text)
        read = last - last % step
        assert reply.usage.cache_read == (read if read >= 30 else 0)
        last = reply.usage.total_input


def test_an_edit_in_the_middle_reads_up_to_the_last_breakpoint_before_it():
    """A changed block costs what lies behind the newest entry before it."""
    client = ProviderClient(provider(cache_minimum=1), "anthropic", cache_control=AUTO, model="claude-opus-5")
    sizes = [client.send_user_text(f"turn {number}").usage.total_input for number in range(4)]
    client.history[4]["content"] = "changed"
    assert client.send_user_text("next").usage.cache_read == sizes[1]


def test_older_models_strip_thinking_and_miss():
    """Up to Sonnet 4.5 the thinking of an earlier turn is not read again once the user speaks, and the cache misses."""
    for model, hits in (("claude-sonnet-4-5", False), ("claude-sonnet-5", True)):
        script = [ScriptedAnswer("", (("ls", {}),), LONG), ScriptedAnswer("done"), ScriptedAnswer("more")]
        client = ProviderClient(provider(script=script), "anthropic", tools=["ls"], model=model, cache_control=AUTO)
        client.body["max_tokens"] = 8_000
        before = client.send_results(client.send_user_text("go")).usage
        after = client.send_user_text("on").usage
        assert (after.cache_read == before.total_input) is hits
        assert (after.total_input > before.total_input) is hits


# -- by itself ---------------------------------------------------------------------------------------------------------


def chat(*texts, **fields):
    return {"model": "gpt-4.1", "messages": [{"role": "user", "content": text} for text in texts], **fields}


def test_openai_caches_by_itself_in_steps():
    """From 1,024 tokens, in steps of 128, no writes reported; what is shared is read, also within a message."""
    one = provider()
    assert usage(one.answer_body("openai-chat", chat(LONG))) == (0, 0)
    read, write = usage(one.answer_body("openai-chat", chat(LONG, "more")))
    assert (read % 128, write) == (0, 0)
    assert read >= 1_024
    longer = LONG + LONG
    one.answer_body("openai-chat", chat(longer))
    half = usage(one.answer_body("openai-chat", chat(longer[: len(longer) * 3 // 4] + "other")))[0]
    assert half > read
    assert usage(one.answer_body("openai-chat", chat("x" + LONG)))[0] == 0
    assert usage(provider().answer_body("openai-chat", chat("short")))[0] == 0


def test_a_cache_key_routes():
    """Requests with other keys share no cache."""
    one = provider()
    one.answer_body("openai-chat", chat(LONG, prompt_cache_key="a"))
    assert usage(one.answer_body("openai-chat", chat(LONG, prompt_cache_key="b")))[0] == 0
    assert usage(one.answer_body("openai-chat", chat(LONG, prompt_cache_key="a")))[0] > 0


def test_newer_gpt_reports_writes():
    """From gpt-5.6 the end of each request is kept for half an hour, and what is new is reported as written."""
    clock = Clock()
    client = ProviderClient(provider(clock), "openai-responses", model="gpt-5.6", instructions=LONG)
    first = client.send_user_text("go").usage
    assert (first.cache_read, first.cache_write) == (0, first.total_input)
    other = client.provider.answer_body("openai-responses", client.body | {"input": "other"}).usage
    assert other.cache_read == 0
    clock.now = 1_799.0
    second = client.send_user_text("on").usage
    assert (second.cache_read, second.cache_write) == (first.total_input, second.total_input - first.total_input)
    clock.now += 1_801.0
    assert client.send_user_text("late").usage.cache_read == 0


def test_gemini_caches_by_itself():
    """An implicit cache from 4,096 tokens on Pro, 1,024 on Flash; writes are free."""
    for model, hits in (("gemini-3-pro", False), ("gemini-3-flash", True)):
        client = ProviderClient(provider(), "gemini", model=model)
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
def test_the_minimum_is_the_models(model, minimum):
    """The shortest cached prefix differs between models of one family."""
    assert get_cache_rules("anthropic", model).minimum == minimum
