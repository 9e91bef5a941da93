"""Conditional compression: what a context is worth, without any rule of ours."""

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


def test_whole_history_and_nothing() -> None:
    """The whole history saves all there is to save, nothing saves nothing: 1 and 0."""
    future = gain.make_future(HISTORY, AFTER)
    assert future is not None
    assert future.max_saved > 200
    assert future.count_saved_bytes(gain.join_messages(HISTORY)) == future.max_saved
    assert future.count_saved_bytes(b"") == 0


def test_what_comes_back_is_worth_more_than_what_does_not() -> None:
    """The message that is used again saves nearly everything, an equally long other one nearly nothing."""
    future = gain.make_future(HISTORY, AFTER)
    assert future is not None
    assert future.count_saved_bytes(gain.join_messages(HISTORY[:1])) > 0.9 * future.max_saved
    assert future.count_saved_bytes(gain.join_messages(HISTORY[2:])) < 0.1 * future.max_saved


def test_what_is_shown_again_is_no_merit() -> None:
    """What the future shows by itself leaves the history nothing to save."""
    future = gain.make_future(HISTORY, [Message.from_text("user", SECRET), Message.from_text("assistant", SECRET)])
    assert future is not None
    assert future.max_saved < 20


def test_twelve_steps_and_what_lies_between() -> None:
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


def test_writing_is_text_and_arguments() -> None:
    """Arguments are written, thoughts are not."""
    parts = (Thinking("thought"), Text("text"), ToolCall("id", "tool", '{"path": "argument"}'))
    future = gain.make_future(HISTORY, [Message("assistant", parts)])
    assert future is not None
    assert future.written_text == b"text\nargument\n"


def test_no_future() -> None:
    """A cut behind which the assistant writes nothing has no gain."""
    assert gain.make_future(HISTORY, []) is None
    assert gain.make_future(HISTORY, [Message.from_text("user", "hello")]) is None


def test_all_of_a_big_dictionary_is_in_reach() -> None:
    """What stands at the very start of three million characters is still found."""
    block = noise(50_000, 3)
    far = (SECRET + block * 60).encode()
    assert (
        gain.measure_compressed_size(SECRET.encode(), far)
        < 40
        < gain.measure_compressed_size(SECRET.encode(), far[400:])
    )


def test_lone_surrogates_compress() -> None:
    """Texts that are no proper Unicode are compressed like others."""
    assert gain.measure_compressed_size(gain.join_messages([Message.from_text("user", "a \ud800 b")]), b"") > 0
