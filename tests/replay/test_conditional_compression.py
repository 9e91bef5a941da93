"""Conditional compression measures what a context is worth, independently of any rule of ours."""

from __future__ import annotations

import random

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, Thinking, ToolCall
from holdfast.replay import conditional_compression as gain


def noise(size: int, seed: int = 1) -> str:
    """Return ``size`` letters that do not compress well."""
    draw = random.Random(seed)
    return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(size))


SECRET = noise(400)
HISTORY = [
    Message.from_text("user", f"remember {SECRET}"),
    Message.from_text("assistant", "yes"),
    Message.from_text("user", noise(900, 2)),
]
AFTER = [Message.from_text("user", "say it"), Message.from_text("assistant", SECRET)]


def test_count_saved_bytes_of_all_and_of_nothing() -> None:
    """The whole history saves everything that can be saved, and an empty context saves nothing."""
    future = gain.make_future(HISTORY, AFTER)
    assert future is not None
    assert future.max_saved > 200
    assert future.count_saved_bytes(gain.join_messages(HISTORY)) == future.max_saved
    assert future.count_saved_bytes(b"") == 0


def test_count_saved_bytes_rewards_text_that_is_used_again() -> None:
    """The message that is used again saves nearly everything, another one of the same length nearly nothing."""
    future = gain.make_future(HISTORY, AFTER)
    assert future is not None
    assert future.count_saved_bytes(gain.join_messages(HISTORY[:1])) > 0.9 * future.max_saved
    assert future.count_saved_bytes(gain.join_messages(HISTORY[2:])) < 0.1 * future.max_saved


def test_count_saved_bytes_ignores_text_shown_again() -> None:
    """What the future shows by itself leaves nothing for the history to save."""
    future = gain.make_future(HISTORY, [Message.from_text("user", SECRET), Message.from_text("assistant", SECRET)])
    assert future is not None
    assert future.max_saved < 20


def test_make_future_covers_twelve_steps() -> None:
    """The future is what the assistant writes in 12 steps and what it is shown until the last of them."""
    after = [
        message
        for n in range(20)
        for message in (Message.from_text("user", f"u{n}"), Message.from_text("assistant", f"a{n}"))
    ]
    future = gain.make_future(HISTORY, after)
    assert future is not None
    assert future.written_text.decode().split() == [f"a{n}" for n in range(12)]
    assert future.shown_text.decode().split() == [f"u{n}" for n in range(12)]


def test_make_future_counts_text_and_arguments_as_written() -> None:
    """Text and call arguments are written text, and thinking is not."""
    parts = (Thinking("thought"), Text("text"), ToolCall("id", "tool", '{"path": "argument"}'))
    future = gain.make_future(HISTORY, [Message("assistant", parts)])
    assert future is not None
    assert future.written_text == b"text\nargument\n"


def test_make_future_is_none_without_written_text() -> None:
    """A cut after which the assistant writes nothing has no gain."""
    assert gain.make_future(HISTORY, []) is None
    assert gain.make_future(HISTORY, [Message.from_text("user", "hello")]) is None


def test_measure_compressed_size_uses_a_dictionary_of_3_mb() -> None:
    """Text at the very start of three million characters is still matched."""
    block = noise(50_000, 3)
    far = (SECRET + block * 60).encode()
    assert (
        gain.measure_compressed_size(SECRET.encode(), far)
        < 40
        < gain.measure_compressed_size(SECRET.encode(), far[400:])
    )


def test_measure_compressed_size_accepts_lone_surrogates() -> None:
    """Text that is not valid Unicode is compressed like any other."""
    assert gain.measure_compressed_size(gain.join_messages([Message.from_text("user", "a \ud800 b")]), b"") > 0
