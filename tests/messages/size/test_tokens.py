"""The estimator: what it counts, how close it comes to a real tokenizer, and how usage calibrates it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis_strategies import wild_history_strategy
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size import tokens
from holdfast.messages.size.token_weights import UNITS_PER_TOKEN, count_token_units
from holdfast.messages.size.tokens import (
    build_sized_message,
    estimate_byte_tokens,
    estimate_text_tokens,
    measure_messages,
)
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.calibration.calibration import MAX_CALIBRATION_RATIO, MIN_CALIBRATION_RATIO
from holdfast.state.calibration.token_estimate import (
    estimate_request_tokens,
    get_calibrated_ratio,
    get_measured_ratio,
    get_planning_ratio,
)
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import AnswerEntry, Entry, EntryBody, MessageEntry, RequestEntry, RequestSetup, Usage
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import Target
from holdfast.state.view import compute_prefix_digest, get_valid_measured_request

BENCH = Path(__file__).resolve().parents[3] / "bench"
JOIN = 15
"""Most tokens that joining two texts moves: seven letters at the seam may change rows, at most two tokens each."""

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=80)
RUNS = st.lists(
    st.sampled_from(["a", "word", "zebra", "getFooBar", " ", "\t", "\n", "7", "._", '"', "É", "日本", "🎉"])
)
TEXT = ANY_TEXT | RUNS.map("".join)


@pytest.fixture(scope="module")
def corpus() -> Iterator[ModuleType]:
    """The corpus of the bench, over every fourth module of the library: enough for a few chunks of each class."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        import corpus
        import sources

        patch.setattr(sources, "MODULES", sources.MODULES[::4])
        yield corpus
    for name in ("corpus", "sources", "rewrite"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def true() -> Callable[[str], int]:
    """Count by a real tokenizer, o200k."""
    encode = pytest.importorskip("bpe_openai").get_encoding("o200k_base").encode
    return lambda text: len(encode(text))


# -- what is counted ---------------------------------------------------------------------------------------------------


@given(TEXT)
def test_only_nothing_counts_nothing(text: str) -> None:
    """Any text, lone surrogates included, counts at least one token; the empty text counts none."""
    assert (estimate_text_tokens(text) > 0) == (text != "")


@given(TEXT, TEXT)
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    """What is appended never lowers a count."""
    assert estimate_text_tokens(text + more) >= estimate_text_tokens(text)


@given(TEXT, TEXT)
def test_counts_add_up(one: str, other: str) -> None:
    """Two texts joined count what they count apart, but for the few letters at the seam."""
    assert abs(estimate_text_tokens(one + other) - estimate_text_tokens(one) - estimate_text_tokens(other)) <= JOIN


def test_long_text_counts_as_its_parts() -> None:
    """A text longer than a block counts as many times its parts as there are."""
    part = "def weigh(block: bytes) -> int:\n    return sum(block)  # units\n"
    assert abs(estimate_text_tokens(part * 10_000) - 10_000 * estimate_text_tokens(part * 100) / 100) <= 100


# -- how close it comes ------------------------------------------------------------------------------------------------


def test_error_over_fifteen_classes(corpus: ModuleType, true: Callable[[str], int]) -> None:
    """Over the fifteen classes the mean error is at most 5 %, and 99 % of the chunks get 0.9 of their tokens."""
    errors = {
        name: [estimate_text_tokens(t) / true(t) - 1 for t in corpus.chunks(name, 4, seed=5)] for name in corpus.CLASSES
    }
    means = {name: sum(map(abs, some)) / len(some) for name, some in errors.items()}
    assert len(means) == 15
    assert sum(means.values()) / len(means) <= 0.05, means
    assert sum(error < -0.1 for some in errors.values() for error in some) <= 1, errors


def test_nothing_is_counted_grossly_low(corpus: ModuleType, true: Callable[[str], int]) -> None:
    """Other scripts, emoji, noise and 10,000 times the same character get at least 0.7 of their tokens."""
    shares = {name: estimate_text_tokens(text) / true(text) for name in corpus.TRAPS for text in corpus.chunks(name, 1)}
    assert {name: share for name, share in shares.items() if share < 0.7} == {}


def test_half_the_time_of_a_tokenizer(corpus: ModuleType, true: Callable[[str], int]) -> None:
    """Counting takes at most half as long as a real tokenizer does for the same text in the same run."""
    texts = [text for name in corpus.CLASSES for text in corpus.chunks(name, 2)]
    assert _seconds(estimate_text_tokens, texts) <= 0.5 * _seconds(true, texts)


def _seconds(work: Callable[[str], int], texts: list[str]) -> float:
    def once() -> float:
        start = time.process_time()
        for text in texts:
            work(text)
        return time.process_time() - start

    return min(once() for _ in range(5))


# -- messages ----------------------------------------------------------------------------------------------------------


def test_measured_size_is_the_text_and_an_overhead() -> None:
    """A message counts its words and 8 tokens around them."""
    words = "The pairing index is carried along, so planning costs what is new.\n" * 20
    assert (
        abs(
            build_sized_message(Message.from_text("user", words)).tokens
            - tokens.MESSAGE_OVERHEAD
            - estimate_text_tokens(words)
        )
        <= 3
    )


@given(st.lists(st.lists(TEXT, max_size=3), max_size=6))
@example([[], ["seven letters"], [""], ["  behind blanks"], ["\n"], ["abcdefg", "hijklmn"], ["", ""]])
def test_many_messages_are_measured_as_each_alone(many: list[list[str]]) -> None:
    """What stands beside a message changes neither its size nor its digest."""
    said = [Message("user", tuple(map(Text, texts))) for texts in many]
    words = [b"\n".join(text.encode("utf-8", "surrogatepass") for text in texts) for texts in many]
    counts = [max(1, round(count_token_units([one]) / UNITS_PER_TOKEN)) if one else 0 for one in words]
    found = list(measure_messages(said))
    assert [size - tokens.MESSAGE_OVERHEAD for size, _ in found] == counts
    assert [SizedMessage(one, *measures) for one, measures in zip(said, found, strict=True)] == list(
        map(build_sized_message, said)
    )


def test_a_block_of_messages_ends_where_it_must() -> None:
    """Messages that fill a block to the last byte, or not quite, are measured as each alone; so are longer ones."""
    unit = "counted line by line  and word by word\n"
    lengths = [0, 1, 65_534, 65_535, 65_536, 65_537, 200_000, 40_000, 25_535, 25_534, 3, 30_000, 35_535, 30_000, 35_536]
    texts = [(unit * 6_000)[at : at + length] for at, length in enumerate(lengths)]
    found = [
        size - tokens.MESSAGE_OVERHEAD
        for size, _ in measure_messages(Message.from_text("user", text) for text in texts)
    ]
    assert found == [estimate_byte_tokens(text.encode()) for text in texts]
    for at in range(6):
        halves = texts[6][at : 30_000 + at], texts[6][: 65_536 - 30_002] + " 7"
        size = build_sized_message(Message("user", tuple(map(Text, halves)))).tokens
        assert size - tokens.MESSAGE_OVERHEAD == estimate_byte_tokens("\n".join(halves).encode())


def test_digest_is_of_the_content() -> None:
    """Equal words have an equal digest, whatever bytes they came in; other words or another speaker have not."""
    said = build_sized_message(Message.from_text("user", "run the tests")).digest
    assert said == build_sized_message(Message("user", (Text("run the tests", raw=Raw(b'{"type": "text"}')),))).digest
    others = [
        Message.from_text("user", "run the test"),
        Message.from_text("assistant", "run the tests"),
        Message("user"),
    ]
    assert said not in {build_sized_message(other).digest for other in others}


def told_apart(part: Part) -> list[bytes]:
    """Return what tells ``part`` apart in the digest of its message: logs hold such digests."""
    if isinstance(part, Text | Thinking):
        data = utf8(part.text)
        return [utf8(f"{type(part).__name__} {len(data)} {part.signature.data if part.signature else ''}"), data]
    if isinstance(part, ToolCall):
        data = utf8(f"{part.name} {part.arguments}")
        return [utf8(f"call {len(data)} {part.id}"), data]
    if isinstance(part, ToolResult):
        head = utf8(f"result {len(part.content)} {part.is_error} {part.call_id}")
        return [head, *(mark for inner in part.content for mark in told_apart(inner))]
    if isinstance(part, Media):
        return [utf8(f"{part.kind} {part.mime} {part.name}"), blake2b(utf8(part.source), digest_size=16).digest()]
    raw = bytes(part.raw or b"")
    return [utf8(f"opaque {len(raw)} {part.kind}"), raw]


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@given(wild_history_strategy())
@example(
    [
        Message(
            "assistant", (Thinking("why", ProviderSignature("anthropic", "m", "EqQB")), ToolCall("c", "t", '{"a":"é"}'))
        )
    ]
)
@example([Message("user", (Opaque("x", Raw(b"\xff")), ToolResult("c", content=(Text("é"), Media("image", "x/y")))))])
def test_digest_has_everything_that_tells_a_message_apart(messages: list[Message]) -> None:
    """A digest is of the role, and of kind, length, names and content of each part, as logs have it."""
    for message, (_, digest) in zip(messages, measure_messages(messages), strict=True):
        marks = [message.role.encode(), *(mark for part in message.parts for mark in told_apart(part))]
        assert digest == blake2b(b"\0".join(marks), digest_size=16).digest()


def test_calls_and_results_count_what_they_hold() -> None:
    """Arguments and output are counted, wherever in a message they stand."""
    text = "collected 76 items, 2 failed: test_limits, test_labels\n" * 30
    for part in (ToolCall("toolu_01", "bash", text), ToolResult("toolu_01", "bash", (Text(text),))):
        assert 0 <= build_sized_message(Message("tool", (part,))).tokens - estimate_text_tokens(text) <= 20


@pytest.mark.parametrize(("kind", "size"), [("image", tokens.IMAGE_TOKENS), ("document", tokens.DOCUMENT_TOKENS)])
def test_media_count_by_rule(kind: str, size: int) -> None:
    """Media count the same whatever bytes they are of, and those bytes tell them apart."""
    small, large = (
        build_sized_message(Message("user", (Media(kind, "x/y", source=data),))) for data in ("aGk=", "aGk=" * 50_000)
    )
    assert abs(small.tokens - large.tokens) <= 5
    assert 0 <= small.tokens - size <= 25
    assert small.digest != large.digest
    album = ToolResult("c", content=(Media(kind, "x/y"), Text("beside"), Media(kind, "x/y")))
    assert 0 <= build_sized_message(Message("tool", (album,))).tokens - 2 * size <= 25


# -- calibration -------------------------------------------------------------------------------------------------------


def told(branch: ConversationState, *bodies: EntryBody) -> ConversationState:
    for body in bodies:
        branch = apply_entry(branch, Entry("", None, body))
    return branch


def turn(branch: ConversationState, words: str, usage: Callable[[int], int], model: str = "m") -> ConversationState:
    """Say ``words``, ask, and have the answer report ``usage(size of the messages)`` tokens."""
    branch = told(branch, MessageEntry(build_sized_message(Message.from_text("user", words))))
    basis = compute_prefix_digest(branch)
    return told(
        branch,
        RequestEntry(basis, len(branch.history.sized_messages), model),
        AnswerEntry(basis, Usage(usage(branch.view.shown_tokens))),
    )


@pytest.mark.parametrize("rate", [0.8, 1.0, 1.27, 1.8])
def test_usage_moves_the_ratio(rate: float) -> None:
    """After thirty answers the ratio is the provider's own within 3 %, wherever it began."""
    branch = ConversationState()
    for i in range(30):
        branch = turn(
            branch, f"Step {i}: " + "the tests of the store pass again. " * 300, lambda h: 5_000 + round(rate * h)
        )
    assert get_calibrated_ratio(branch, Target(prior_ratio=1.2)) == pytest.approx(rate, rel=0.03)


def test_prior_holds_until_usage_tells_more() -> None:
    """Without usage the ratio is the model's prior; one short answer hardly moves it."""
    target = Target(prior_ratio=1.25)
    branch = turn(ConversationState(), "hello " * 40, lambda _: 3_000)
    assert get_calibrated_ratio(ConversationState(), target) == 1.25
    assert get_calibrated_ratio(turn(branch, "once more " * 20, lambda _: 3_200), target) == pytest.approx(
        1.25, abs=0.15
    )


@given(st.lists(st.integers(0, 10**7), max_size=12))
def test_ratio_keeps_its_bounds(reports: list[int]) -> None:
    """Whatever a provider reports, the ratio stays between 0.5 and 2.5."""
    branch = told(ConversationState(), RequestSetup("f", 1_000))
    for report in reports:
        branch = turn(branch, "some words to go by " * 10, lambda _, told_=report: told_)
    assert MIN_CALIBRATION_RATIO <= get_calibrated_ratio(branch, Target()) <= MAX_CALIBRATION_RATIO


@pytest.mark.parametrize("rate", [3.0, 7.0, 20.0])
def test_plans_are_made_by_what_texts_were_counted_at(rate: float) -> None:
    """Where usage is far above every text, plans go by it, though the calibration keeps its bounds."""
    target = Target(setup=RequestSetup("f", 1_000, is_exact=True))
    branch = told(ConversationState(), target.setup)
    for number in range(12):
        branch = turn(branch, f"Step {number}: " + "the tests pass. " * 20, lambda held: 1_000 + round(rate * held))
    assert get_calibrated_ratio(branch, target) <= MAX_CALIBRATION_RATIO
    assert get_measured_ratio(branch, target) == pytest.approx(rate, rel=0.05)
    assert get_planning_ratio(branch, target) == get_measured_ratio(branch, target)


@pytest.mark.parametrize("usage", [lambda held: 40_000 + held, lambda held: held + 9_000 * (held > 1_000)])
def test_no_frame_and_no_odd_count_is_taken_for_heavy_texts(usage: Callable[[int], int]) -> None:
    """A frame that nobody told, or one leap of the counts, leaves the plan within the bounds of the calibration."""
    target = Target(setup=RequestSetup("f", 500, is_exact=True))
    branch = told(ConversationState(), target.setup)
    for number in range(12):
        branch = turn(branch, f"Step {number}: " + "the tests pass. " * 20, usage)
    assert get_planning_ratio(branch, target) <= MAX_CALIBRATION_RATIO


def test_first_estimate_is_rounded_up() -> None:
    """Before any usage a request counts its frame and its messages by the prior, and a tenth more."""
    branch = told(ConversationState(), MessageEntry(build_sized_message(Message.from_text("user", "words " * 500))))
    guess = estimate_request_tokens(branch, Target(prior_ratio=1.25, setup=RequestSetup("f", 9_000, is_exact=True)))
    assert guess == 9_000 + round(1.25 * 1.1 * branch.view.shown_tokens)


def test_estimate_is_the_usage_and_what_came_since() -> None:
    """Right after an answer the estimate is what was reported; later, that and the calibrated rest."""
    branch = turn(ConversationState(), "look at the file " * 30, lambda _: 12_345)
    target = Target(prior_ratio=1.25)
    assert estimate_request_tokens(branch, target) == 12_345
    later = told(branch, MessageEntry(build_sized_message(Message.from_text("tool", "line of output\n" * 200))))
    assert estimate_request_tokens(later, target) == 12_345 + round(
        get_calibrated_ratio(later, target) * (later.view.shown_tokens - branch.view.shown_tokens)
    )


def test_another_model_or_frame_starts_anew() -> None:
    """Usage of one model tells nothing of another, and none survives a change of frame that is more than a clock."""
    branch = turn(turn(ConversationState(), "a " * 900, lambda _: 9_000), "b " * 900, lambda _: 12_000)
    assert get_valid_measured_request(branch) is not None
    assert get_valid_measured_request(told(branch, RequestSetup("other", 7))) == replace(
        get_valid_measured_request(branch), reported_tokens=12_007
    )
    assert get_valid_measured_request(told(branch, RequestSetup("other", 700_000))) is None
    switched = told(branch, RequestEntry("c", len(branch.history.sized_messages), "other"))
    assert (get_valid_measured_request(switched), get_calibrated_ratio(switched, Target(prior_ratio=1.1))) == (
        None,
        1.1,
    )


# -- texts too long to be held twice -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["a word in a line\n", "配置文件 ", "\ud83d\n", "x"])
@pytest.mark.parametrize("before", ["", "short", "long"])
def test_a_long_text_is_measured_in_pieces_as_if_at_once(unit, before):
    """Size and digest of a message do not tell whether a text of it was looked at whole or piece by piece."""
    long = (unit * 700_000)[:1_300_001]
    texts = [text for text in ({"long": long[::-1]}.get(before, before), long, "end") if text]
    slot = build_sized_message(Message("user", tuple(Text(text) for text in texts)))
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    marks = [mark for one in data for mark in (f"Text {len(one)} ".encode(), one)]
    assert slot.tokens == tokens.MESSAGE_OVERHEAD + estimate_byte_tokens(b"\n".join(data))
    assert slot.digest == blake2b(b"\0".join([b"user", *marks]), digest_size=16).digest()
    assert estimate_text_tokens(long) == estimate_byte_tokens(long.encode("utf-8", "surrogatepass"))
