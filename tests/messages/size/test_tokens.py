"""The token estimator: what it counts, how close it comes to a real tokenizer, and how usage calibrates it."""

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
    estimate_tokens_by_text,
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
MAX_SEAM_TOKENS = 15
"""Most tokens by which joining changes a count: seven letters at the seam may change rows, two tokens each."""

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=80)
RUNS = st.lists(
    st.sampled_from(["a", "word", "zebra", "getFooBar", " ", "\t", "\n", "7", "._", '"', "É", "日本", "🎉"])
)
TEXT = ANY_TEXT | RUNS.map("".join)


@pytest.fixture(scope="module")
def corpus() -> Iterator[ModuleType]:
    """Return the corpus of the benchmark over every fourth module: enough for a few chunks of each class."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        import corpus
        import sources

        patch.setattr(sources, "MODULES", sources.MODULES[::4])
        yield corpus
    for name in ("corpus", "sources", "rewrite"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def count_real_tokens() -> Callable[[str], int]:
    """Return a function that counts with a real tokenizer, o200k."""
    encode = pytest.importorskip("bpe_openai").get_encoding("o200k_base").encode
    return lambda text: len(encode(text))


# -- what is counted ---------------------------------------------------------------------------------------------------


@given(TEXT)
def test_estimate_text_tokens_is_zero_only_for_empty_text(text: str) -> None:
    """Any text, lone surrogates included, counts at least one token; the empty text counts none."""
    assert (estimate_text_tokens(text) > 0) == (text != "")


@given(TEXT, TEXT)
def test_estimate_text_tokens_never_shrinks_with_more_text(text: str, more: str) -> None:
    """Appending text never lowers the count."""
    assert estimate_text_tokens(text + more) >= estimate_text_tokens(text)


@given(TEXT, TEXT)
def test_estimate_text_tokens_is_additive(first: str, second: str) -> None:
    """Two joined texts count the sum of their counts, except for the few letters at the seam."""
    assert (
        abs(estimate_text_tokens(first + second) - estimate_text_tokens(first) - estimate_text_tokens(second))
        <= MAX_SEAM_TOKENS
    )


@given(st.lists(TEXT | st.text(alphabet="xé 0\n", min_size=60, max_size=200), max_size=20), st.integers(1, 400))
def test_estimate_tokens_by_text_is_the_estimate_of_each(lines: list[str], repeats: int) -> None:
    """Law: weighed together, in one block or in several, each text has the tokens that it has alone."""
    lines = lines * repeats
    assert estimate_tokens_by_text(lines) == [estimate_text_tokens(line) for line in lines]


def test_estimate_text_tokens_of_a_long_text_equals_the_sum_of_its_parts() -> None:
    """A text longer than a block counts as many times its part as it repeats the part."""
    part = "def weigh(block: bytes) -> int:\n    return sum(block)  # units\n"
    assert abs(estimate_text_tokens(part * 10_000) - 10_000 * estimate_text_tokens(part * 100) / 100) <= 100


# -- accuracy and speed ------------------------------------------------------------------------------------------------


def test_estimate_text_tokens_error_over_fifteen_classes(
    corpus: ModuleType, count_real_tokens: Callable[[str], int]
) -> None:
    """Over fifteen classes the mean error is at most 5 %, and 99 % of the chunks get at least 0.9 of their tokens."""
    errors = {
        name: [estimate_text_tokens(t) / count_real_tokens(t) - 1 for t in corpus.chunks(name, 4, seed=5)]
        for name in corpus.CLASSES
    }
    means = {name: sum(map(abs, class_errors)) / len(class_errors) for name, class_errors in errors.items()}
    assert len(means) == 15
    assert sum(means.values()) / len(means) <= 0.05, means
    assert sum(error < -0.1 for class_errors in errors.values() for error in class_errors) <= 1, errors


def test_estimate_text_tokens_counts_nothing_grossly_low(
    corpus: ModuleType, count_real_tokens: Callable[[str], int]
) -> None:
    """Other scripts, emoji, noise and 10,000 times the same character get at least 0.7 of their tokens."""
    shares = {
        name: estimate_text_tokens(text) / count_real_tokens(text)
        for name in corpus.TRAPS
        for text in corpus.chunks(name, 1)
    }
    assert {name: share for name, share in shares.items() if share < 0.7} == {}


def test_estimate_text_tokens_takes_half_the_time_of_a_tokenizer(
    corpus: ModuleType, count_real_tokens: Callable[[str], int]
) -> None:
    """Counting takes at most half as long as a real tokenizer takes for the same text in the same run."""
    texts = [text for name in corpus.CLASSES for text in corpus.chunks(name, 2)]
    assert _measure_seconds(estimate_text_tokens, texts) <= 0.5 * _measure_seconds(count_real_tokens, texts)


def _measure_seconds(work: Callable[[str], int], texts: list[str]) -> float:
    def measure_once() -> float:
        start = time.process_time()
        for text in texts:
            work(text)
        return time.process_time() - start

    return min(measure_once() for _ in range(5))


# -- messages ----------------------------------------------------------------------------------------------------------


def test_build_sized_message_counts_text_and_overhead() -> None:
    """A message counts its text and 8 tokens of overhead."""
    text = "The pairing index is carried along, so planning costs what is new.\n" * 20
    assert (
        abs(
            build_sized_message(Message.from_text("user", text)).tokens
            - tokens.MESSAGE_OVERHEAD
            - estimate_text_tokens(text)
        )
        <= 3
    )


@given(st.lists(st.lists(TEXT, max_size=3), max_size=6))
@example([[], ["seven letters"], [""], ["  behind blanks"], ["\n"], ["abcdefg", "hijklmn"], ["", ""]])
def test_measure_messages_equals_measuring_each_message(texts_by_message: list[list[str]]) -> None:
    """Other messages in the list change neither the size nor the digest of a message."""
    messages = [Message("user", tuple(map(Text, texts))) for texts in texts_by_message]
    encoded_texts = [b"\n".join(text.encode("utf-8", "surrogatepass") for text in texts) for texts in texts_by_message]
    counts = [max(1, round(count_token_units([text]) / UNITS_PER_TOKEN)) if text else 0 for text in encoded_texts]
    found = list(measure_messages(messages))
    assert [size - tokens.MESSAGE_OVERHEAD for size, _ in found] == counts
    assert [SizedMessage(message, *measures) for message, measures in zip(messages, found, strict=True)] == list(
        map(build_sized_message, messages)
    )


def test_measure_messages_handles_block_boundaries() -> None:
    """Messages that fill a block exactly or nearly are measured like single ones, and so are longer ones."""
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


def test_message_digest_covers_content_not_bytes() -> None:
    """Equal text has an equal digest whatever its wire bytes; other text or another role has another digest."""
    digest = build_sized_message(Message.from_text("user", "run the tests")).digest
    assert digest == build_sized_message(Message("user", (Text("run the tests", raw=Raw(b'{"type": "text"}')),))).digest
    others = [
        Message.from_text("user", "run the test"),
        Message.from_text("assistant", "run the tests"),
        Message("user"),
    ]
    assert digest not in {build_sized_message(other).digest for other in others}


def list_digest_fields(part: Part) -> list[bytes]:
    """Return the fields of ``part`` in the digest of its message, in the form that existing logs have."""
    if isinstance(part, Text | Thinking):
        data = encode_utf8(part.text)
        return [encode_utf8(f"{type(part).__name__} {len(data)} {part.signature.data if part.signature else ''}"), data]
    if isinstance(part, ToolCall):
        data = encode_utf8(f"{part.name} {part.arguments}")
        return [encode_utf8(f"call {len(data)} {part.id}"), data]
    if isinstance(part, ToolResult):
        head = encode_utf8(f"result {len(part.content)} {part.is_error} {part.call_id}")
        return [head, *(field for inner in part.content for field in list_digest_fields(inner))]
    if isinstance(part, Media):
        return [
            encode_utf8(f"{part.kind} {part.mime} {part.name}"),
            blake2b(encode_utf8(part.source), digest_size=16).digest(),
        ]
    raw = bytes(part.raw or b"")
    return [encode_utf8(f"opaque {len(raw)} {part.kind}"), raw]


def encode_utf8(text: str) -> bytes:
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
def test_message_digest_covers_role_and_every_part(messages: list[Message]) -> None:
    """A digest covers the role and the kind, length, names and content of each part; existing logs rely on
    this form.
    """
    for message, (_, digest) in zip(messages, measure_messages(messages), strict=True):
        fields = [message.role.encode(), *(field for part in message.parts for field in list_digest_fields(part))]
        assert digest == blake2b(b"\0".join(fields), digest_size=16).digest()


def test_build_sized_message_counts_arguments_and_results() -> None:
    """Arguments and results are counted, whatever the part of the message."""
    text = "collected 76 items, 2 failed: test_limits, test_labels\n" * 30
    for part in (ToolCall("toolu_01", "bash", text), ToolResult("toolu_01", "bash", (Text(text),))):
        assert 0 <= build_sized_message(Message("tool", (part,))).tokens - estimate_text_tokens(text) <= 20


@pytest.mark.parametrize(("kind", "size"), [("image", tokens.IMAGE_TOKENS), ("document", tokens.DOCUMENT_TOKENS)])
def test_build_sized_message_counts_media_by_kind(kind: str, size: int) -> None:
    """Media count by kind whatever their bytes, but the bytes change the digest."""
    small, large = (
        build_sized_message(Message("user", (Media(kind, "x/y", source=data),))) for data in ("aGk=", "aGk=" * 50_000)
    )
    assert abs(small.tokens - large.tokens) <= 5
    assert 0 <= small.tokens - size <= 25
    assert small.digest != large.digest
    album = ToolResult("c", content=(Media(kind, "x/y"), Text("beside"), Media(kind, "x/y")))
    assert 0 <= build_sized_message(Message("tool", (album,))).tokens - 2 * size <= 25


# -- calibration -------------------------------------------------------------------------------------------------------


def append_bodies(state: ConversationState, *bodies: EntryBody) -> ConversationState:
    for body in bodies:
        state = apply_entry(state, Entry("", None, body))
    return state


def append_turn(
    state: ConversationState, text: str, usage: Callable[[int], int], model: str = "m"
) -> ConversationState:
    """Append a user message, a request and an answer that reports ``usage(size of the messages)`` tokens."""
    state = append_bodies(state, MessageEntry(build_sized_message(Message.from_text("user", text))))
    prefix_digest = compute_prefix_digest(state)
    return append_bodies(
        state,
        RequestEntry(prefix_digest, len(state.history.sized_messages), model),
        AnswerEntry(prefix_digest, Usage(usage(state.view.shown_tokens))),
    )


@pytest.mark.parametrize("rate", [0.8, 1.0, 1.27, 1.8])
def test_calibrated_ratio_follows_reported_usage(rate: float) -> None:
    """After thirty answers the ratio is within 3 % of the provider's own, whatever the prior."""
    state = ConversationState()
    for i in range(30):
        state = append_turn(
            state, f"Step {i}: " + "the tests of the store pass again. " * 300, lambda h: 5_000 + round(rate * h)
        )
    assert get_calibrated_ratio(state, Target(prior_ratio=1.2)) == pytest.approx(rate, rel=0.03)


def test_calibrated_ratio_is_the_prior_until_usage_arrives() -> None:
    """Without usage the ratio is the model's prior, and one short answer hardly moves it."""
    target = Target(prior_ratio=1.25)
    state = append_turn(ConversationState(), "hello " * 40, lambda _: 3_000)
    assert get_calibrated_ratio(ConversationState(), target) == 1.25
    assert get_calibrated_ratio(append_turn(state, "once more " * 20, lambda _: 3_200), target) == pytest.approx(
        1.25, abs=0.15
    )


@given(st.lists(st.integers(0, 10**7), max_size=12))
def test_calibrated_ratio_stays_within_its_bounds(reports: list[int]) -> None:
    """Whatever a provider reports, the ratio stays between 0.5 and 2.5."""
    state = append_bodies(ConversationState(), RequestSetup("f", 1_000))
    for report in reports:
        state = append_turn(state, "some words to go by " * 10, lambda _, reported=report: reported)
    assert MIN_CALIBRATION_RATIO <= get_calibrated_ratio(state, Target()) <= MAX_CALIBRATION_RATIO


@pytest.mark.parametrize("rate", [3.0, 7.0, 20.0])
def test_planning_ratio_follows_usage_beyond_the_bounds(rate: float) -> None:
    """When usage is far above every estimate, plans use it although the calibration keeps its bounds."""
    target = Target(setup=RequestSetup("f", 1_000, is_exact=True))
    state = append_bodies(ConversationState(), target.setup)
    for number in range(12):
        state = append_turn(
            state, f"Step {number}: " + "the tests pass. " * 20, lambda shown_tokens: 1_000 + round(rate * shown_tokens)
        )
    assert get_calibrated_ratio(state, target) <= MAX_CALIBRATION_RATIO
    assert get_measured_ratio(state, target) == pytest.approx(rate, rel=0.05)
    assert get_planning_ratio(state, target) == get_measured_ratio(state, target)


@pytest.mark.parametrize("usage", [lambda shown: 40_000 + shown, lambda shown: shown + 9_000 * (shown > 1_000)])
def test_planning_ratio_ignores_an_unknown_setup_and_an_odd_count(usage: Callable[[int], int]) -> None:
    """An unreported setup, or one leap of the counts, leaves the planning ratio within the calibration bounds."""
    target = Target(setup=RequestSetup("f", 500, is_exact=True))
    state = append_bodies(ConversationState(), target.setup)
    for number in range(12):
        state = append_turn(state, f"Step {number}: " + "the tests pass. " * 20, usage)
    assert get_planning_ratio(state, target) <= MAX_CALIBRATION_RATIO


def test_estimate_request_tokens_is_raised_before_any_usage() -> None:
    """Before any usage a request counts its setup and its messages by the prior, plus a tenth."""
    state = append_bodies(
        ConversationState(), MessageEntry(build_sized_message(Message.from_text("user", "words " * 500)))
    )
    guess = estimate_request_tokens(state, Target(prior_ratio=1.25, setup=RequestSetup("f", 9_000, is_exact=True)))
    assert guess == 9_000 + round(1.25 * 1.1 * state.view.shown_tokens)


def test_estimate_request_tokens_adds_new_messages_to_the_usage() -> None:
    """Right after an answer the estimate is the reported usage; later, that plus the calibrated rest."""
    state = append_turn(ConversationState(), "look at the file " * 30, lambda _: 12_345)
    target = Target(prior_ratio=1.25)
    assert estimate_request_tokens(state, target) == 12_345
    later = append_bodies(state, MessageEntry(build_sized_message(Message.from_text("tool", "line of output\n" * 200))))
    assert estimate_request_tokens(later, target) == 12_345 + round(
        get_calibrated_ratio(later, target) * (later.view.shown_tokens - state.view.shown_tokens)
    )


def test_measured_request_ends_with_another_model_or_setup() -> None:
    """Usage of one model does not apply to another, and none survives a setup change larger than a clock."""
    state = append_turn(append_turn(ConversationState(), "a " * 900, lambda _: 9_000), "b " * 900, lambda _: 12_000)
    assert get_valid_measured_request(state) is not None
    assert get_valid_measured_request(append_bodies(state, RequestSetup("other", 7))) == replace(
        get_valid_measured_request(state), reported_tokens=12_007
    )
    assert get_valid_measured_request(append_bodies(state, RequestSetup("other", 700_000))) is None
    switched = append_bodies(state, RequestEntry("c", len(state.history.sized_messages), "other"))
    assert (get_valid_measured_request(switched), get_calibrated_ratio(switched, Target(prior_ratio=1.1))) == (
        None,
        1.1,
    )


# -- very long texts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["a word in a line\n", "配置文件 ", "\ud83d\n", "x"])
@pytest.mark.parametrize("before", ["", "short", "long"])
def test_build_sized_message_measures_long_texts_in_pieces(unit, before):
    """Size and digest do not depend on whether a text was read at once or in pieces."""
    long = (unit * 700_000)[:1_300_001]
    texts = [text for text in ({"long": long[::-1]}.get(before, before), long, "end") if text]
    sized = build_sized_message(Message("user", tuple(Text(text) for text in texts)))
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    fields = [field for encoded in data for field in (f"Text {len(encoded)} ".encode(), encoded)]
    assert sized.tokens == tokens.MESSAGE_OVERHEAD + estimate_byte_tokens(b"\n".join(data))
    assert sized.digest == blake2b(b"\0".join([b"user", *fields]), digest_size=16).digest()
    assert estimate_text_tokens(long) == estimate_byte_tokens(long.encode("utf-8", "surrogatepass"))
