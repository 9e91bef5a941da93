"""Classification of errors and answers: every family of wordings, and properties that hold for any wording."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.providers.errors.answer_rules import count_prompt_tokens
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.error_facts import collect_error_facts
from holdfast.providers.errors.error_rules import ERROR_RULES
from holdfast.providers.errors.report import OVERFLOW_KINDS, VERDICT_KINDS, AnswerReport, ErrorReport, Verdict

FOLDER = Path(__file__).parent
RULE_NAMES = [rule.__name__ for rule in ERROR_RULES]
CASES = json.loads((FOLDER / "error_wordings.json").read_text(encoding="utf-8"))
FILES = (
    "public_wordings/seen.jsonl",
    "public_wordings/fresh.jsonl",
    "public_wordings/unseen.jsonl",
    "own_wordings.jsonl",
)
WORDINGS = [json.loads(line) for name in FILES for line in (FOLDER / name).read_text("utf-8").splitlines()]
WORDING_REPORTS = [
    ErrorReport(wording.get("provider", ""), wording["status"], body=wording["text"]) for wording in WORDINGS
]
FIELDS = ("provider", "status", "code", "message", "body", "headers", "estimate", "window")
STATUSES = [None, 200, 400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 502, 503, 529]


def build_report(case, **other):
    fields = {name: case[name] for name in FIELDS if name in case}
    return ErrorReport(**(fields | other))


def get_expected(case):
    return (case["kind"], case.get("limit"), case.get("requested"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['provider']}-{case['kind']}")
def test_classify_error_reads_each_family_of_wordings(case):
    """Kind and numbers are those of the case, which are facts about the named provider."""
    found = classify_error(build_report(case))
    assert (found.kind, found.limit, found.requested) == get_expected(case)
    assert found.max_bytes == case.get("bytes")
    assert found.output_cap == case.get("output_cap")
    assert "retry_after" not in case or found.retry_after == pytest.approx(case["retry_after"])
    assert found.is_overflow is (case["kind"] in OVERFLOW_KINDS)


TEXTS = [case for case in CASES if case.get("message")]


def encode_inner_error(text):
    return json.dumps({"error": {"message": text}})


WRAPPERS = {
    "object": lambda text, code: {"error": {"message": text, "code": code}},
    "detail": lambda text, _: json.dumps({"detail": text}),
    "gateway": lambda text, _: {
        "error": {"message": f"litellm.BadRequestError: VertexAIException - {encode_inner_error(text)}"}
    },
    "router": lambda text, _: {
        "error": {"message": "Provider returned error", "metadata": {"raw": encode_inner_error(text)}}
    },
    "events": lambda text, _: f"event: error\ndata: {encode_inner_error(text)}\n\n".encode(),
    "list": lambda text, _: f"[{encode_inner_error(text)}]",
    "bytes": lambda text, _: text.encode() + b" \xff\xfe",
    "upper": lambda text, _: text.upper(),
    "python": lambda text, code: f"Error: {({'error': {'message': text, 'code': code}})!r}",
}  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_classify_error_ignores_what_wraps_the_message(wrapper):
    """JSON in JSON, a list, an event, broken bytes or capitals around a message do not change the verdict."""
    wrong = []
    for case in TEXTS:
        body = WRAPPERS[wrapper](case["message"], case["code"])
        found = classify_error(build_report(case, message="", body=body))
        if (found.kind, found.limit, found.requested) != get_expected(case):
            wrong.append((case["message"], found))
    assert wrong == []


FORMATS = {
    "plain": "{}".format, "comma": "{:,}".format, "underscore": "{:_}".format,
    "point": lambda number: f"{number:,}".replace(",", "."),
    "space": lambda number: f"{number:,}".replace(",", "\u00a0"),
    "narrow": lambda number: f"{number:,}".replace(",", "\u202f"),
    "apostrophe": lambda number: f"{number:,}".replace(",", "\u2019"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@given(limit=st.integers(1_000_000, 999_999_999), over=st.integers(1, 10**6))
def test_classify_error_reads_numbers_with_any_separator(name, limit, over):
    """Thousands separators of any country do not change a number."""
    text = f"prompt is too long: {FORMATS[name](limit + over)} tokens > {FORMATS[name](limit)} maximum"
    assert classify_error(ErrorReport("x", 400, message=text)) == Verdict("context_window", limit, limit + over)


@pytest.mark.parametrize(
    ("written", "number"), [("200k", 200_000), ("1M", 1_000_000), ("1.05M", 1_050_000), ("131.072k", 131_072)]
)
def test_classify_error_expands_units_of_numbers(written, number):
    """``200k`` is 200,000."""
    found = classify_error(ErrorReport("x", 400, message=f"maximum context length is {written} tokens"))
    assert found == Verdict("context_window", number)


RATE_WORDINGS = [
    "Rate limit reached for gpt-4o on tokens per min (TPM): Limit {0}, Used {1}, Requested {2}. Try again in 3s.",
    "Rate limit reached on requests per min (RPM): Limit {0}, Used {1}, Requested {2}.",
    "This request would exceed the rate limit of {0} input tokens per minute. Please reduce the prompt length.",
    "Number of request tokens ({1}) has exceeded your per-minute rate limit of {0} tokens; reduce the prompt length",
    "Too many requests: context tokens {1} of {0} this minute; input is too long to be served at this rate limit",
    "ThrottlingException: Too many tokens ({1} > {0}), please wait before trying again.",
    "Tokens per minute limit exceeded - too many tokens processed: {1}/{0}.",
    "request reached organization TPD rate limit, current: {1}, limit: {0}",
    "You exceeded your current quota: input token count {1}, limit: {0}",
    "429 Too Many Requests: request of {1} tokens exceeds rate limit of {0} tokens per hour",
]
NUMBERS = st.integers(0, 10**9)
SIZE_WORDINGS = [
    "Too many input tokens.",
    "Request too large: prompt tokens {1} exceed the limit {0}",
    "prompt is too long: {1} tokens > {0} maximum",
    "maximum context length is {0} tokens, you requested {1} tokens",
    "input token count ({1}) exceeds the maximum number of tokens allowed ({0})",
    "Request Entity Too Large",
    "输入的 token 超出限制 {0}",
]
OTHER_CODES = [
    "rate_limit_error", "rate_limit_exceeded", "ThrottlingException", "RESOURCE_EXHAUSTED", "overloaded_error",
    "insufficient_quota", "billing_error", "authentication_error", "ServiceQuotaExceededException",
    "server_is_overloaded", "permission_denied", "com.amazonaws.bedrock#ThrottlingException",
]  # fmt: skip
TIME_WORDINGS = [
    "Please try again later.", "Wait 20 seconds.", "Retry in 12s.", "Please retry shortly.", "You sent that in 60s.",
    "That is per minute.", "In the last 30 seconds.", "That was all for today.", "The queue is full.",
    "Too many at peak load.", "Tokens replenish at midnight.", "10 分後に再試行してください", "请稍后重试",
    "Das gilt pro Minute.",
    "Try again in 1m2s", "Espera 20 segundos.", "Patientez 20 secondes.", "Warten Sie 20 Sekunden.",
    "All our current capacity is used.", "5분 후에 다시 시도하세요", "Réessayez plus tard.",
]  # fmt: skip


CODES = ["", "rate_limit_error", "tokens", "429"]


@given(st.sampled_from(RATE_WORDINGS), NUMBERS, NUMBERS, NUMBERS, st.sampled_from(STATUSES), st.sampled_from(CODES))
def test_classify_error_never_takes_a_rate_limit_for_an_overflow(wording, limit, used, requested, status, code):
    """Holds for any numbers, except one request over the whole token limit of a minute, where waiting does not help."""
    found = classify_error(ErrorReport("x", status, code, wording.format(limit, used, requested)))
    if found.is_overflow:
        assert found == Verdict("tpm_ceiling", limit, requested)
        assert wording is RATE_WORDINGS[0]
        assert requested > limit


@given(
    st.sampled_from(SIZE_WORDINGS),
    NUMBERS,
    NUMBERS,
    st.sampled_from(STATUSES),
    st.sampled_from(OTHER_CODES),
    st.booleans(),
)
def test_classify_error_prefers_the_error_code_to_the_wording(wording, limit, used, status, name, inside):
    """If the code names time, money, capacity or access, no text and no status makes it an overflow."""
    text = wording.format(limit, used)
    body = {"error": {"type": name, "message": text}} if inside else {"type": name, "message": text}
    assert not classify_error(ErrorReport("x", status, "", body=body)).is_overflow
    assert not classify_error(ErrorReport("x", status, name, text)).is_overflow


@given(
    st.sampled_from(SIZE_WORDINGS),
    NUMBERS,
    NUMBERS,
    st.sampled_from(STATUSES),
    st.sampled_from(TIME_WORDINGS),
    st.booleans(),
)
def test_classify_error_takes_a_size_with_a_time_for_a_rate_limit(wording, limit, used, status, when, first):
    """A wording of size beside one of time is a rate limit, in any order and under any status."""
    size_text = wording.format(limit, used)
    text = f"{when} {size_text}" if first else f"{size_text} {when}"
    assert not classify_error(ErrorReport("x", status, "", text)).is_overflow
    assert not classify_error(ErrorReport("x", status, "tokens_limit_reached", text)).is_overflow


@given(limit=st.integers(1, 10**9), requested=st.integers(1, 10**9))
def test_classify_error_compares_the_numbers_of_a_rate_ceiling(limit, requested):
    """For tokens a minute, a request over the limit is an overflow; up to it, and equal, is a rate limit."""
    text = f"Request too large on tokens per min (TPM): Limit {limit}, Requested {requested}."
    kind = "tpm_ceiling" if requested > limit else "rate_limit"
    assert classify_error(ErrorReport("openai", 429, message=text)) == Verdict(kind, limit, requested)


KEYS = ["error", "message", "code", "type", "details", "raw", "n_ctx", "retry_after", "x"]
TEXT = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS) | TEXT, inner),
    max_leaves=12,
)


@given(json_values | st.binary(), st.sampled_from(STATUSES) | st.integers(), st.text(), st.none() | st.integers())
def test_classify_error_gives_a_verdict_for_any_body(body, status, code, estimate):
    """Any JSON and any bytes have a kind of the closed list, and numbers that are counts."""
    for error_body in (body, json.dumps(body, default=repr)):
        found = classify_error(ErrorReport("x", status, code, body=error_body, estimate=estimate, window=estimate))
        assert found.kind in VERDICT_KINDS
        assert all(number is None or number >= 0 for number in (found.limit, found.requested, found.retry_after))


USAGE = ["input_tokens", "prompt_tokens", "output_tokens", "cache_read_input_tokens", "promptTokenCount"]


@given(st.dictionaries(st.sampled_from(USAGE) | TEXT, json_values, max_size=4), TEXT, st.none() | st.integers())
def test_classify_error_gives_a_verdict_for_any_usage(usage, reason, number):
    """Usage of any shape is read or ignored."""
    assert classify_error(AnswerReport("x", reason, usage, number, number)).kind in VERDICT_KINDS


def shuffle_fields(value, chance):
    if isinstance(value, dict):
        items = list(value.items())
        chance.shuffle(items)
        return {key: shuffle_fields(inner, chance) for key, inner in items}
    return [shuffle_fields(inner, chance) for inner in value] if isinstance(value, list) else value


@given(json_values, st.sampled_from(CASES), st.randoms(use_true_random=False))
def test_classify_error_ignores_the_order_of_fields(other, case, chance):
    """Two orders of the same fields give the same verdict and numbers."""
    error = {"message": case.get("message"), "details": [other], "code": case["code"]}
    body = {"error": error, "detail": case.get("body"), "reason": "see above"}
    first = classify_error(ErrorReport("x", case["status"], body=body))
    assert classify_error(ErrorReport("x", case["status"], body=shuffle_fields(body, chance))) == first


PIECES = [
    "a", "1", "1,", "1 ", "(", "<", "<a", "{", '{"error":', "[", "context ", "exceed ", "tokens ", "limit ", "1.",
    "9" * 15 + " ", "prompt ", "max_tokens ", "https://", "input tokens (", "image ", "messages[", "try again in 1",
    "データ", "\u00a0" + "1", "<script>", "requested ", "too ", "data:", "\ud800", "invalid ",
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_classify_error_takes_linear_time_for_repetitive_text(piece, assert_subquadratic):
    """No text, however repetitive, takes more time than its length."""

    def classifying(size):
        report = ErrorReport("x", 400, message=piece * (size // len(piece)))
        return lambda: classify_error(report)

    assert_subquadratic(classifying, 50_000)


def test_classify_error_takes_linear_time_for_shuffled_words(assert_subquadratic):
    """The words that the patterns look for, repeated and shuffled, take no more either."""
    words = [word for case in TEXTS for word in case["message"].split()]

    def classifying(size):
        report = ErrorReport("x", 400, message=" ".join(random.Random(3).choices(words, k=size)))
        return lambda: classify_error(report)

    assert_subquadratic(classifying, 10_000)


QUOTED = "prompt is too long: 210000 tokens > 200000 maximum"


def test_classify_error_ignores_fields_that_quote_the_conversation():
    """``input``, ``content`` and ``choices`` say nothing about the error."""
    detail = {"msg": "Field required", "loc": ["body"], "input": {"messages": [{"content": QUOTED}]}}
    body = {"detail": [detail], "content": QUOTED}
    assert classify_error(ErrorReport("x", 422, body=body)) == Verdict("invalid_request")
    assert classify_error(ErrorReport("x", 200, body={"choices": [{"message": {"content": QUOTED}}]})).kind == "unknown"


SUMMED = {"input_tokens": 0, "output_tokens": 0, "iterations": [{"type": "compaction", "input_tokens": 60_012}]}
ANSWERS = [
    ("model_context_window_exceeded", {}, None, None, Verdict("context_window")),
    ("stop", {"input_tokens": 210_000}, None, 200_000, Verdict("silent_overflow", 200_000, 210_000)),
    ("stop", {"input_tokens": 200_000}, None, 200_000, Verdict("content")),
    ("length", {"prompt_tokens": 198_000}, None, 200_000, Verdict("silent_overflow", 200_000, 198_000)),
    ("length", {"prompt_tokens": 197_999}, None, 200_000, Verdict("output_limit")),
    ("length", {"prompt_tokens": 199_000, "completion_tokens": 9}, None, 200_000, Verdict("output_limit")),
    ("stop", {"input_tokens": 25_000_000}, 61_000, 200_000, Verdict("content")),
    ("stop", {"input_tokens": 25_000_000}, None, 200_000, Verdict("content")),
    ("length", {"input_tokens": 450_000}, 61_000, 200_000, Verdict("output_limit")),
    ("stop", {"input_tokens": 450_000}, 91_000, 200_000, Verdict("silent_overflow", 200_000, 450_000)),
    ("stop", {"input_tokens": 390_000}, 61_000, 200_000, Verdict("silent_overflow", 200_000, 390_000)),
    ("stop", {"prompt_eval_count": 4_096}, 38_200, 32_768, Verdict("silent_truncation")),
    ("stop", {"prompt_eval_count": 19_100}, 38_200, 32_768, Verdict("content")),
    ("stop", {"prompt_eval_count": 100}, 900, None, Verdict("content")),
    ("stop", {}, 38_200, 32_768, Verdict("content")),
    ("SAFETY", {}, None, None, Verdict("content")),
    ("error", {}, None, None, Verdict("unknown")),
    ("end_turn", SUMMED, 60_000, 200_000, Verdict("content")),
    (
        "end_turn",
        {"input_tokens": 190_000, "iterations": [{"input_tokens": 95_000}] * 2},
        None,
        180_000,
        Verdict("content"),
    ),
    ("compaction", {"input_tokens": 0}, 60_000, 200_000, Verdict("content")),
]


@pytest.mark.parametrize(("reason", "usage", "estimate", "window", "verdict"), ANSWERS)
def test_classify_error_detects_overflow_in_answers(reason, usage, estimate, window, verdict):
    """Usage over the window, an answer cut at its first token, and a prompt read in part are overflows."""
    assert classify_error(AnswerReport("any", reason, usage, estimate, window)) == verdict


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": 5, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 25}, 100),
        ({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 70}}, 100),
        ({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 70}}, 100),
        ({"promptTokenCount": 100, "cachedContentTokenCount": 70}, 100),
        ({"input": 5, "cacheRead": 70, "cacheWrite": 25}, 100),
        ({"output_tokens": 3}, None),
        (SUMMED, 60_012),
        (
            {"input_tokens": 5, "iterations": [{"input_tokens": 1, "cache_read_input_tokens": 6}, {"input_tokens": 3}]},
            7,
        ),
        ({"input_tokens": 5, "iterations": [None, {"type": "advisor"}]}, 5),
    ],
)
def test_count_prompt_tokens_counts_cached_tokens_once(usage, tokens):
    """Holds whether the prompt field of the API includes cached tokens or not."""
    assert count_prompt_tokens(usage) == tokens


@pytest.mark.parametrize(
    ("headers", "text", "seconds"),
    [
        ({"Retry-After": "12"}, "try again in 3s", 12.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, "", 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, "", None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT", "Date": "Wed, 21 Oct 2026 07:27:30 GMT"}, "", 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 09:28:00 +0200"}, "", None),
        (
            {"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"},
            "try again in 3s",
            3.0,
        ),
        ({"retry-after": "Wed Oct 21 07:28:00 2026", "date": "Wed, 21 Oct 2026 07:27:30 -0000"}, "", 30.0),
        ({"retry-after": "Wed, 21 Oct 99999 07:28:00 GMT", "date": "today"}, "", None),
        ({}, "Please try again in 1m2.5s", 62.5),
        ({}, "Please try again in 120ms.", 0.12),
        ({}, "Please retry after 12 seconds", 12.0),
        ({}, "retry in 1h2m3s", 3_723.0),
        ({}, "wait 2 minutes and 5 seconds", 125.0),
        ({}, "Espere 2 minutos y 5 segundos", 125.0),
        ({}, "Réessayez dans 2 heures", 7_200.0),
        ({}, "Versuchen Sie es in 3 Stunden und 1 Minute erneut", 10_860.0),
        ({}, "Attendi 1 ora e 30 secondi", 3_630.0),
        ({"retry-after": "soon"}, "please try again later", None),
    ],
)
def test_classify_error_reads_retry_after(headers, text, seconds):
    """Headers win over texts; a date is relative to the response's own date, or to the time it was received."""
    report = ErrorReport("x", 429, message=f"Rate limit reached. {text}", headers=headers)
    found = classify_error(report)
    assert found.kind == "rate_limit"
    assert found.retry_after == pytest.approx(seconds)
    received_at = 1_792_567_670.0  # ten seconds before 07:28
    assert classify_error(replace(report, received_at=received_at)).retry_after == pytest.approx(
        10.0 if _is_dated(headers) else seconds
    )


def _is_dated(headers):
    return headers == {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}


def test_error_rules_are_ordered_and_documented():
    """The first rules come in the documented order, and each has a sentence."""
    assert [rule.__name__ for rule in ERROR_RULES[:3]] == [
        "_detect_agent_guard",
        "_detect_rate_ceiling",
        "_detect_long_context_tier",
    ]
    assert all((rule.__doc__ or "").partition("\n")[0].endswith(".") for rule in ERROR_RULES)


@cache
def judge_by_each_rule():
    """Return for every report the verdict of each rule alone, by the rule's name; None where it says nothing."""
    verdicts_by_report = []
    for report in [*map(build_report, CASES), *WORDING_REPORTS]:
        facts = collect_error_facts(report)
        verdicts_by_report.append({rule.__name__: rule(facts, report) for rule in ERROR_RULES})
    return verdicts_by_report


def decide_in_order(verdicts, names):
    """Return the verdict of the first of the named rules that has one."""
    return next((verdicts[name] for name in names if verdicts[name] is not None), Verdict("unknown"))


def test_classify_error_is_the_first_verdict_of_its_rules():
    """What the tests below compute from single rules is what the classifier says, but for the time to wait."""
    reports = [*map(build_report, CASES), *WORDING_REPORTS]
    for report, verdicts in zip(reports, judge_by_each_rule(), strict=True):
        expected = decide_in_order(verdicts, RULE_NAMES)
        assert replace(classify_error(report), retry_after=None) == replace(expected, retry_after=None)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_classify_error_needs_each_of_its_rules(name):
    """Without any one of the rules some case is wrong."""
    left = [rule_name for rule_name in RULE_NAMES if rule_name != name]
    assert len(left) == len(RULE_NAMES) - 1
    found = [decide_in_order(verdicts, left) for verdicts in judge_by_each_rule()[: len(CASES)]]
    assert [(verdict.kind, verdict.limit, verdict.requested) for verdict in found] != [
        get_expected(case) for case in CASES
    ]


INTERCHANGEABLE_RULES = {
    "_detect_agent_guard": "an agent's own sentence states no tokens a minute",
    "_detect_rate_ceiling": "Anthropic's long-context tier has no limit of a minute",
    "_detect_stated_excess": "a refusal without a reason states nothing",
    "_detect_context_wording": "it and the wide wordings of tokens have the same verdict on what both recognize",
    "_detect_status_413": "a server that is busy is another cause, which the rule for 413 looks for itself",
}
"""Rules that may trade places with the one after them, and why."""


@pytest.mark.parametrize("name", RULE_NAMES[:-1])
def test_classify_error_needs_the_order_of_its_rules(name):
    """If a rule trades places with the next one, the verdict on some case changes, unless both orders are right."""
    names = list(RULE_NAMES)
    index = names.index(name)
    names[index], names[index + 1] = names[index + 1], names[index]
    verdicts = [decide_in_order(verdicts, RULE_NAMES) for verdicts in judge_by_each_rule()]
    is_unchanged = [decide_in_order(verdicts, names) for verdicts in judge_by_each_rule()] == verdicts
    assert is_unchanged is (name in INTERCHANGEABLE_RULES)


@pytest.mark.parametrize(
    ("fields", "expected_line"),
    [
        ({}, "it gave no reason"),
        ({"body": b" \n"}, "it gave no reason"),
        ({"body": b"{}", "message": " "}, "it gave no reason"),
        ({"body": None}, "it gave no reason"),
        ({"body": {"error": "busy"}}, '{"error":"busy"}'),
        ({"body": b"<h1>Bad\n gateway\xff</h1>"}, "<h1>Bad gateway\ufffd</h1>"),
        ({"body": b"{}", "message": "try\nlater"}, "try later"),
    ],
)
def test_message_line_puts_the_reason_on_one_line(fields, expected_line):
    """The provider's message is put on one line, or a fixed text if there is none."""
    assert ErrorReport(status=500, **fields).message_line == expected_line


@pytest.mark.parametrize(
    ("text", "limit", "requested", "counted_tokens"),
    [
        ("maximum context length is 32768 tokens. your prompt contains at least 32769 input tokens", 32_768, 32_769, 0),
        ("maximum context length is 32768 tokens. your prompt contains 33000 input tokens", 32_768, 33_000, 33_000),
        (
            "maximum context length is 32768 tokens, you requested 4096 output tokens and it contains at least 28673",
            32_768,
            28_673,
            28_673,
        ),
    ],
)
def test_classify_error_reads_at_least_as_a_lower_bound(text, limit, requested, counted_tokens):
    """vLLM stops counting one token after the limit, so a prompt of "at least" that many may have any size."""
    verdict = classify_error(text, 400)
    assert (verdict.limit, verdict.requested) == (limit, requested)
    assert verdict.is_requested_minimum is ("at least" in text)
    assert verdict.counted_tokens == counted_tokens


@pytest.mark.parametrize(
    ("text", "max_bytes", "sent_bytes"),
    [
        ("total message size 10176584 exceeds limit 2097152", 2_097_152, 10_176_584),
        ("The payload reached 19,625,039 bytes, exceeding the limit of 15,728,640 bytes.", 15_728_640, 19_625_039),
        ("Request body is larger than 10 MB", 10_000_000, None),
        ("request (9.5 MB) is over the 4.5 MB limit", 4_500_000, 9_500_000),
        ("client intended to send too large body: 3520276 bytes", None, 3_520_276),
        ("The response body exceeds 10 MB", None, None),
    ],
)
def test_classify_error_reads_bytes_apart_from_tokens(text, max_bytes, sent_bytes):
    """Bytes of a body are no tokens, and an answer's are not the request's."""
    verdict = classify_error(text, 400)
    assert (verdict.limit, verdict.requested) == (None, None)
    assert (verdict.max_bytes, verdict.sent_bytes) == (max_bytes, sent_bytes)


def test_classify_error_accepts_a_text_or_a_body():
    """A caller with only the text, or the bytes of the body, gets the verdict of the whole report."""
    text = "This model's maximum context length is 128000 tokens. However, your messages resulted in 130512 tokens."
    body = json.dumps({"error": {"message": text, "code": "context_length_exceeded"}}).encode()
    assert classify_error(text, status=400) == classify_error(ErrorReport(status=400, message=text))
    assert classify_error(body, status=400) == classify_error(ErrorReport(status=400, body=body))
    assert classify_error(text).limit == 128_000
    assert classify_error("Too many requests", status=429).kind == "rate_limit"
