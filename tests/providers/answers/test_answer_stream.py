"""Answers of each API, case by case: usage, stop reasons, history, errors and the quirks of servers."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.messages.parts import Opaque, Text, Thinking, ToolCall
from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.answers.usage import parse_billed_usage, parse_window_usage
from holdfast.providers.common.sse import SseReader, StreamEvent
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.rules.validate import validate_request
from holdfast.state.entries import Usage


def encode(value):
    return json.dumps(value).encode()


def accumulate(api, *bodies):
    fold = AnswerStream(api)
    for body in bodies:
        fold.add_event(StreamEvent(body if isinstance(body, bytes) else encode(body)))
    return fold.build_answer()


# -- usage -------------------------------------------------------------------------------------------------------------

CALL = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30, "output_tokens": 5}
CACHE_WRITES = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}
COMPACTION_ITERATION = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500}
MESSAGE_ITERATION = {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000}


@pytest.mark.parametrize(
    ("api", "counts", "expected"),
    [
        ("anthropic", CALL, Usage(240, 5, 200, 30)),
        ("anthropic", CALL | {"output_tokens_details": {"thinking_tokens": 3}}, Usage(240, 5, 200, 30, 3)),
        ("anthropic", {"input_tokens": 7, "cache_read_input_tokens": None, "output_tokens": 1}, Usage(7, 1)),
        ("anthropic", CALL | {"cache_creation": CACHE_WRITES}, Usage(240, 5, 200, 30, cache_write_1h=20)),
        ("anthropic", {"input_tokens": 7, "cache_creation": CACHE_WRITES}, Usage(7)),
        (
            "openai-chat",
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 16},
                "completion_tokens_details": {"reasoning_tokens": 12},
            },
            Usage(100, 20, 64, 16, 12),
        ),
        (
            "openai-chat",
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 150,
                "completion_tokens_details": {"reasoning_tokens": 30},
            },
            Usage(100, 50, 0, 0, 30),
        ),
        ("openai-chat", {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 8}, Usage(9, 1, 8)),
        ("openai-chat", {"prompt_tokens": 9, "completion_tokens": 1, "cached_tokens": 80}, Usage(89, 1, 80)),
        (
            "openai-responses",
            {
                "input_tokens": 100,
                "output_tokens": 20,
                "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 16},
                "output_tokens_details": {"reasoning_tokens": 12},
            },
            Usage(100, 20, 64, 16, 12),
        ),
        (
            "gemini",
            {
                "promptTokenCount": 100,
                "cachedContentTokenCount": 60,
                "toolUsePromptTokenCount": 7,
                "candidatesTokenCount": 20,
                "thoughtsTokenCount": 30,
                "totalTokenCount": 157,
            },
            Usage(107, 50, 60, 0, 30),
        ),
        ("gemini", {"promptTokenCount": 10, "thoughtsTokenCount": 30, "totalTokenCount": 40}, Usage(10, 30, 0, 0, 30)),
        (
            "gemini",
            {"promptTokenCount": 10, "candidatesTokenCount": 35, "thoughtsTokenCount": 30, "totalTokenCount": 45},
            Usage(10, 35, 0, 0, 30),
        ),
    ],
)
def test_parse_usage_has_one_meaning_for_all_apis(api, counts, expected):
    """``input`` is the whole prompt and ``output`` everything generated, whatever an API's own fields leave out."""
    assert parse_window_usage(api, encode(counts)) == expected
    assert parse_billed_usage(api, encode(counts)) == expected
    assert expected.total == expected.input + expected.output


def test_parse_usage_separates_window_from_billed_iterations():
    """Of Anthropic's iterations the last message counts for the window, never a compaction; all of them are billed."""
    top = {"input_tokens": 23_000, "output_tokens": 1_000}
    for iterations in ([COMPACTION_ITERATION, MESSAGE_ITERATION], [MESSAGE_ITERATION, COMPACTION_ITERATION]):
        usage = encode(top | {"iterations": iterations})
        assert parse_window_usage("anthropic", usage) == Usage(23_000, 1_000)
        assert parse_billed_usage("anthropic", usage) == Usage(203_000, 4_500)
    loop = {"input_tokens": 50_000, "output_tokens": 3_000, "output_tokens_details": {"thinking_tokens": 40}}
    usage = encode(
        loop | {"iterations": [MESSAGE_ITERATION, MESSAGE_ITERATION | {"input_tokens": 27_000, "output_tokens": 2_000}]}
    )
    assert parse_window_usage("anthropic", usage) == Usage(27_000, 2_000)
    assert parse_billed_usage("anthropic", usage) == Usage(50_000, 3_000, 0, 0, 40)
    alone = encode(top | {"iterations": [COMPACTION_ITERATION]})
    assert (parse_window_usage("anthropic", alone), parse_billed_usage("anthropic", alone)) == (
        Usage(23_000, 1_000),
        Usage(203_000, 4_500),
    )
    iterations_with_writes = [
        call | {"cache_creation_input_tokens": 20, "cache_creation": CACHE_WRITES}
        for call in (MESSAGE_ITERATION, COMPACTION_ITERATION)
    ]
    assert (
        parse_billed_usage(
            "anthropic", encode(iterations_with_writes[0] | {"iterations": iterations_with_writes})
        ).cache_write_1h
        == 40
    )
    fallback = [MESSAGE_ITERATION, MESSAGE_ITERATION | {"type": "fallback_message", "input_tokens": 5}]
    assert parse_window_usage("anthropic", encode(top | {"iterations": fallback})) == Usage(5, 1_000)


@pytest.mark.parametrize("counts", [None, b"null", b"{}", b"[1]", b'"x"', b'{"a":{}}', b'{"a":"1"}'])
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses", "gemini"])
def test_parse_usage_returns_none_without_counts(api, counts):
    """Usage that is missing, null or of another shape is None, not zeros."""
    assert parse_window_usage(api, counts) is None
    assert parse_billed_usage(api, counts) is None


@pytest.mark.parametrize("count", [-5, "7", None, [1], 1e300, True])
def test_parse_usage_bounds_odd_counts(count):
    """A negative count is 0, a huge one is bounded, and other types count as nothing."""
    found = parse_window_usage("openai-chat", encode({"prompt_tokens": count, "completion_tokens": 3}))
    assert found is not None
    assert 0 <= found.input <= 2**53
    assert found.output == 3


# -- reasons -----------------------------------------------------------------------------------------------------------


def build_anthropic_body(reason, content=({"type": "text", "text": "a"},)):
    return {"role": "assistant", "content": list(content), "stop_reason": reason}


def build_chat_body(reason, **message):
    return {"choices": [{"message": {"content": "a"} | message, "finish_reason": reason}]}


def build_gemini_body(reason, *parts):
    return {"candidates": [{"content": {"parts": list(parts) or [{"text": "a"}]}, "finishReason": reason}]}


def build_responses_body(status, reason=None, *items, **fields):
    return {"status": status, "incomplete_details": reason and {"reason": reason}, "output": list(items)} | fields


CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEM_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
REFUSAL = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}


@pytest.mark.parametrize(
    ("api", "body", "stop", "native"),
    [
        ("anthropic", build_anthropic_body("end_turn"), "end", "end_turn"),
        ("anthropic", build_anthropic_body("tool_use"), "tool", "tool_use"),
        ("anthropic", build_anthropic_body("max_tokens"), "length", "max_tokens"),
        ("anthropic", build_anthropic_body("model_context_window_exceeded"), "window", "model_context_window_exceeded"),
        ("anthropic", build_anthropic_body("pause_turn"), "pause", "pause_turn"),
        ("anthropic", build_anthropic_body("compaction"), "compaction", "compaction"),
        ("anthropic", build_anthropic_body("refusal"), "refusal", "refusal"),
        ("anthropic", build_anthropic_body("stop_sequence"), "stop_sequence", "stop_sequence"),
        ("anthropic", build_anthropic_body("of_tomorrow"), "unknown", "of_tomorrow"),
        ("anthropic", build_anthropic_body(None), "unknown", ""),
        ("openai-chat", build_chat_body("stop"), "end", "stop"),
        ("openai-chat", build_chat_body("stop", tool_calls=[CHAT_CALL]), "tool", "stop"),
        ("openai-chat", build_chat_body("stop", content=None, refusal="no"), "refusal", "stop"),
        ("openai-chat", build_chat_body("length"), "length", "length"),
        ("openai-chat", build_chat_body("length", tool_calls=[CHAT_CALL]), "length", "length"),
        ("openai-chat", build_chat_body("MAX_TOKENS"), "length", "MAX_TOKENS"),
        ("openai-chat", build_chat_body("content_filter"), "content_filter", "content_filter"),
        ("openai-chat", build_chat_body("model_length"), "window", "model_length"),
        ("openai-chat", build_chat_body("error"), "error", "error"),
        ("openai-chat", build_chat_body("of_tomorrow"), "unknown", "of_tomorrow"),
        ("openai-responses", build_responses_body("completed"), "end", "completed"),
        ("openai-responses", build_responses_body("completed", None, ITEM_CALL), "tool", "completed"),
        ("openai-responses", build_responses_body("completed", None, REFUSAL), "refusal", "completed"),
        (
            "openai-responses",
            build_responses_body("completed", None, {"type": "compaction"}),
            "compaction",
            "completed",
        ),
        ("openai-responses", build_responses_body("incomplete", "max_output_tokens"), "length", "max_output_tokens"),
        ("openai-responses", build_responses_body("incomplete", "content_filter"), "content_filter", "content_filter"),
        ("openai-responses", build_responses_body("incomplete", "steered"), "pause", "steered"),
        ("openai-responses", build_responses_body("incomplete", "of_tomorrow"), "unknown", "of_tomorrow"),
        ("openai-responses", build_responses_body("cancelled"), "error", "cancelled"),
        ("gemini", build_gemini_body("STOP"), "end", "STOP"),
        ("gemini", build_gemini_body("STOP", {"functionCall": {"name": "f"}}), "tool", "STOP"),
        ("gemini", build_gemini_body("MAX_TOKENS"), "length", "MAX_TOKENS"),
        ("gemini", build_gemini_body("SAFETY"), "content_filter", "SAFETY"),
        ("gemini", build_gemini_body("MALFORMED_FUNCTION_CALL"), "error", "MALFORMED_FUNCTION_CALL"),
        ("gemini", build_gemini_body("CONTINUATION"), "pause", "CONTINUATION"),
        ("gemini", build_gemini_body("OTHER"), "unknown", "OTHER"),
        ("gemini", {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, "content_filter", "PROHIBITED_CONTENT"),
    ],
)
def test_parse_answer_maps_stop_reasons(api, body, stop, native):
    """Each API's reason is mapped to a closed list, its own word is kept, and an unknown word becomes ``unknown``."""
    answer = parse_answer(api, encode(body))
    assert (answer.stop_reason, answer.native_stop_reason, answer.error) == (stop, native, None)


# -- what goes into the history ----------------------------------------------------------------------------------------


def test_parse_answer_keeps_in_history_only_what_requests_accept():
    """Empty fields, annotations and audio data are dropped; a call without text has content null."""
    message = {"role": "assistant", "content": "", "refusal": None, "annotations": [], "tool_calls": [CHAT_CALL]}
    (element,) = parse_answer("openai-chat", encode(build_chat_body("tool_calls", **message))).history_elements
    assert json.loads(element) == {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
    message = {"content": None, "audio": {"id": "audio_1", "data": "AAAA", "transcript": "hi"}}
    (element,) = parse_answer("openai-chat", encode(build_chat_body("stop", **message))).history_elements
    assert json.loads(element) == {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert parse_answer("gemini", encode(build_gemini_body("STOP"))).history_elements == (
        b'{"role":"model","parts":[{"text": "a"}]}',
    )


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("anthropic", build_anthropic_body("end_turn", [])),
        ("openai-chat", build_chat_body("stop", content="")),
        ("openai-chat", {"choices": []}),
        ("openai-responses", build_responses_body("completed")),
        ("gemini", {"candidates": [{"finishReason": "STOP"}]}),
        ("gemini", {"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}),
    ],
)
def test_parse_answer_without_content_has_no_history(api, body):
    """An answer without content is a message that no API would accept back."""
    answer = parse_answer(api, encode(body))
    assert (answer.history_elements, answer.message.parts) == ((), ())


def test_parse_answer_keeps_unknown_blocks_and_items():
    """An unknown block is an opaque part with its bytes, and is sent back unchanged."""
    block = {"type": "of_tomorrow", "n": 123456789012345678901234567890, "f": 1.10}
    answer = parse_answer("anthropic", b'{"content":[' + encode(block) + b"]}")
    assert answer.message.parts[0].kind == "of_tomorrow"
    assert encode(block) in answer.history_elements[0]
    answer = parse_answer("openai-responses", b'{"status":"completed","output":[' + encode(block) + b", 5]}")
    assert answer.history_elements == (encode(block),)
    assert isinstance(answer.message.parts[0], Opaque)


def test_parse_answer_takes_the_choice_with_the_smallest_index():
    """Of several choices or candidates the one with the smallest index counts, in any order."""
    choices = [{"index": n, "message": {"content": str(n)}, "finish_reason": "stop"} for n in (2, 0, 1)]
    assert parse_answer("openai-chat", encode({"choices": choices})).message.text == "0"
    deltas = [{"choices": [{"index": n, "delta": {"content": str(n)}}]} for n in (1, 0, 1, 0)]
    assert accumulate("openai-chat", *deltas).message.text == "00"


def test_parse_answer_replaces_lone_surrogates():
    """Text that no JSON decoder accepts becomes U+FFFD instead of an error; the rest of the answer is kept."""
    answer = parse_answer("anthropic", b'{"content":[{"type":"text","text":"a\\ud83d"}],"stop_reason":"end_turn"}')
    assert (answer.message.text, answer.stop_reason) == ("a\ufffd", "end")
    answer = accumulate("openai-chat", b'{"choices":[{"delta":{"content":"a\xff"}}]}')
    assert answer.message.text == "a\ufffd"


@pytest.mark.parametrize(
    ("body", "damaged"),
    [
        ('{"choices":[{"delta":{"content":"a\ufffd\\ufffd"}}]}'.encode(), False),
        (b'{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":NaN}}', False),
        (b"no JSON", False),
        (b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}', True),
        (b'{"choices":[{"delta":{"content":"a\xff"}}]}', True),
        (b'{"choices":[{"delta":{"conte\xffnt":"a"}}]}', True),
    ],
)
def test_is_damaged_marks_answers_with_bytes_that_are_not_text(body, damaged):
    """Lone surrogates and invalid UTF-8 are damage; a U+FFFD by the model, or an event that is no JSON, is not."""
    assert accumulate("openai-chat", {"choices": []}, body).is_damaged == damaged
    if body.startswith(b"{"):
        assert parse_answer("openai-chat", body.replace(b"delta", b"message")).is_damaged == damaged


@pytest.mark.parametrize(
    "stream", [b"data: {\xff\n\n", b"event: x\nda\xffta: {}\n\n", b"data: {}\n\xff\ndata: {}\n\n", b"\xffdata: {}\n\n"]
)
def test_is_damaged_marks_streams_that_lost_an_event(stream):
    """An unreadable event, line or event end may have lost text; a comment has none to lose."""
    fold = AnswerStream("anthropic")
    for event in SseReader().feed(b": ping\n\ndata: {}\n\ndata: none\n\n" + stream):
        assert not fold.build_answer().is_damaged
        fold.add_event(event)
    assert fold.build_answer().is_damaged


# -- events ------------------------------------------------------------------------------------------------------------


def test_answer_stream_takes_later_usage_and_model_of_anthropic():
    """The end of a message overrides its start, null does not, and a fallback block names the model that answered."""
    start = {"id": "m", "model": "a", "role": "assistant", "content": [], "usage": CALL, "stop_reason": None}
    answer = accumulate(
        "anthropic",
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "fallback", "to": {"model": "b"}}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "x"}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": 11, "output_tokens": 9, "cache_read_input_tokens": None},
        },
        {"type": "message_stop"},
    )
    assert (answer.model, answer.id, answer.stop_reason, answer.is_complete) == ("b", "m", "end", True)
    assert answer.usage == Usage(241, 9, 200, 30)


def test_answer_stream_wraps_truncated_arguments_in_an_object():
    """Half an object is no tool input, so the text received so far is kept inside an object."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    answer = accumulate(
        "anthropic",
        {"type": "message_start", "message": {"model": "a"}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": "b'}},
    )
    (call,) = answer.message.calls
    assert json.loads(call.arguments) == {"arguments": '{"a": "b'}
    assert not answer.is_complete


def test_answer_stream_appends_unknown_deltas_to_their_field():
    """An unknown kind of delta extends the field that it names, like every known kind."""
    answer = accumulate(
        "anthropic",
        {"type": "content_block_start", "index": 0, "content_block": {"type": "new", "notes": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "notes_delta", "notes": "b"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "notes_delta", "notes": "c", "n": 1}},
    )
    assert json.loads(answer.history_elements[0])["content"] == [{"type": "new", "notes": "abc", "n": 1}]


def test_answer_stream_replaces_a_repeated_signature():
    """A signature comes in one piece, so a second one replaces the first."""
    answer = accumulate(
        "anthropic",
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "a"}},
        *({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": one}} for one in "st"),
    )
    assert answer.message.parts[0].signature.data == "t"


def test_answer_stream_orders_blocks_by_index():
    """Blocks are in the order of their index, and an empty delta does not undo complete input."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    answer = accumulate(
        "anthropic",
        {"type": "content_block_start", "index": 1, "content_block": use},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ""}},
    )
    assert json.loads(answer.history_elements[0])["content"] == [{"type": "text", "text": "x"}, use]


def test_answer_stream_concatenates_lists_without_index():
    """Elements without an index (citations, token probabilities) are appended."""
    fold = AnswerStream("openai-chat")
    for n in (1, 2):
        delta = {"annotations": [{"type": "url_citation", "n": n}], "content": "a"}
        fold.add_event(
            StreamEvent(encode({"choices": [{"delta": delta, "logprobs": {"content": [{"token": "a", "n": n}]}}]}))
        )
    assert json.loads(fold.build_answer().history_elements[0]) == {"role": "assistant", "content": "aa"}
    (choice,) = json.loads(fold.build_body())["choices"]
    assert [annotation["n"] for annotation in choice["message"]["annotations"]] == [1, 2]
    assert choice["logprobs"] == {"content": [{"token": "a", "n": 1}, {"token": "a", "n": 2}]}


def build_call_fragment(index, identity=None, name=None, arguments=None):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "id": identity, "function": function}
    delta = {"tool_calls": [{key: value for key, value in call.items() if value is not None}]}
    return {"choices": [{"index": 0, "delta": delta}]}


@pytest.mark.parametrize(
    "chunks",
    [
        [
            build_call_fragment(0, "a", "f", "{"),
            build_call_fragment(1, "b", "g", "{"),
            build_call_fragment(0, None, None, "}"),
            build_call_fragment(1, None, None, "}"),
        ],
        [build_call_fragment(0, "a", "f", "{}"), build_call_fragment(0, "b", "g", "{}")],
        [build_call_fragment(None, "a", "f", "{}"), build_call_fragment(None, "b", "g", "{}")],
        [
            build_call_fragment(0, "a", "f", ""),
            build_call_fragment(0, "a", "f", "{}"),
            build_call_fragment(1, "b", "g", "{"),
            build_call_fragment(1, "", "g", "}"),
        ],
    ],
    ids=["interleaved", "one index for all", "no index", "names and ids repeated"],
)
def test_answer_stream_joins_call_fragments_by_index_or_id(chunks):
    """Calls are joined by index, and by id if a server gives all of them the same index or none."""
    calls = accumulate("openai-chat", *chunks).message.calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [("a", "f", "{}"), ("b", "g", "{}")]


def test_answer_stream_adds_a_missing_call_type():
    """Some servers omit ``type`` in calls, streamed or not; a request needs it, and calls are ordered by ``index``."""
    first, second = ({"id": name, "function": {"name": name, "arguments": "{}"}} for name in "ab")
    typed = [call | {"type": "function"} for call in (first, second)]
    deltas = [{"tool_calls": [call | {"index": index}]} for index, call in ((1, second), (0, first))]
    streamed = accumulate("openai-chat", *({"choices": [{"index": 0, "delta": delta}]} for delta in deltas))
    whole = parse_answer("openai-chat", encode(build_chat_body("tool_calls", tool_calls=[first, second])))
    results = [{"role": "tool", "tool_call_id": name, "content": "r"} for name in "ab"]
    for answer in (streamed, whole):
        message = json.loads(answer.history_elements[0])
        assert message["tool_calls"] == typed
        request = {"model": "m", "messages": [{"role": "user", "content": "x"}, message, *results]}
        assert [found for found in validate_request(encode(request), "openai-chat") if found.level == "error"] == []


def test_parse_answer_adds_the_type_of_custom_calls():
    """A call with ``custom`` in place of ``function`` gets that type."""
    call = {"id": "a", "custom": {"name": "x", "input": "y"}}
    (element,) = parse_answer("openai-chat", encode(build_chat_body("tool_calls", tool_calls=[call]))).history_elements
    assert json.loads(element)["tool_calls"] == [call | {"type": "custom"}]


def test_answer_stream_appends_a_bare_fragment_to_the_last_call():
    """A fragment with neither index nor id belongs to the call before it."""
    answer = accumulate(
        "openai-chat", build_call_fragment(None, "a", "f", '{"x"'), build_call_fragment(None, None, None, ": 1}")
    )
    assert [(call.id, call.arguments) for call in answer.message.calls] == [("a", '{"x": 1}')]


def test_answer_stream_joins_reasoning_of_compatible_servers():
    """Reasoning beside the content is thinking, and its details are joined by their index."""
    details = [{"index": 0, "type": "reasoning.text", "text": text, "format": "x"} for text in ("th", "ink")]
    deltas = [
        {"reasoning": "a", "reasoning_details": [details[0]]},
        {"reasoning": "b", "reasoning_details": [details[1]]},
    ]
    answer = accumulate("openai-chat", *({"choices": [{"delta": delta}]} for delta in [*deltas, {"content": "c"}]))
    assert [part.text for part in answer.message.parts if isinstance(part, Thinking)] == ["ab"]
    kept = json.loads(answer.history_elements[0])["reasoning_details"]
    assert kept == [{"index": 0, "type": "reasoning.text", "text": "think", "format": "x"}]


def test_answer_stream_of_chat_ends_with_a_reason_or_done():
    """Some servers send only one of the finish reason and ``[DONE]``; either completes the answer."""
    words = {"choices": [{"delta": {"content": "a"}}]}
    assert not accumulate("openai-chat", words).is_complete
    assert accumulate("openai-chat", words, b"[DONE]").is_complete
    assert accumulate("openai-chat", words, {"choices": [{"delta": {}, "finish_reason": "stop"}]}).is_complete


def test_answer_stream_prefers_done_items_over_added_ones():
    """A done item replaces the added one, whose encrypted content may be unfinished."""
    item = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "half"}
    answer = accumulate(
        "openai-responses",
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item | {"encrypted_content": "whole"}},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    )
    assert [part.signature.data for part in answer.message.parts] == ["whole"]


def test_answer_stream_drops_the_seal_of_unfinished_reasoning():
    """Reasoning that a cut stream only began keeps its words, without the beginning of its encrypted content."""
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "half"}
    words = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "So"}
    answer = accumulate(
        "openai-responses", {"type": "response.output_item.added", "output_index": 0, "item": item}, words
    )
    assert [(part.text, part.signature.data) for part in answer.message.parts] == [("So", "rs_1")]
    assert b"half" not in answer.history_elements[0]


def test_answer_stream_keeps_the_deltas_of_a_truncated_stream():
    """If a Responses stream is cut, the answer has what its deltas brought."""
    added = {"type": "response.output_item.added", "output_index": 1, "item": ITEM_CALL | {"arguments": ""}}
    words = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hi"}
    message = {"type": "response.output_item.added", "output_index": 0, "item": REFUSAL | {"content": []}}
    args = {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a"'}
    answer = accumulate("openai-responses", message, words, added, args, words | {"delta": " you"})
    assert answer.message.text == "hi you"
    assert [call.arguments for call in answer.message.calls] == ['{"a"']
    assert not answer.is_complete


def test_answer_stream_never_merges_signed_parts_of_gemini():
    """Texts are joined with neighbours of the same kind; a signed part, and the text after it, is never merged."""
    parts = [
        [{"text": "a", "thought": True}],
        [{"text": "b", "thought": True}, {"text": "c"}],
        [{"text": "d"}, {"text": "e", "thoughtSignature": "s1"}, {"text": "f"}],
        [{"text": "g"}, {"text": "", "thoughtSignature": "s2"}, {"text": ""}],
    ]
    chunks = [{"candidates": [{"content": {"parts": group}}]} for group in parts]
    chunks[0]["usageMetadata"] = {"promptTokenCount": 3, "thoughtsTokenCount": 4}
    chunks[1]["usageMetadata"] = {"promptTokenCount": 5, "candidatesTokenCount": None}
    answer = accumulate("gemini", *chunks, build_gemini_body("STOP", {"text": ""}))
    assert answer.usage == Usage(5, 4, 0, 0, 4)
    assert json.loads(answer.history_elements[0])["parts"] == [
        {"text": "ab", "thought": True},
        {"text": "cd"},
        {"text": "e", "thoughtSignature": "s1"},
        {"text": "fg"},
        {"text": "", "thoughtSignature": "s2"},
    ]


def test_answer_stream_joins_partial_arguments_of_gemini():
    """A call whose arguments come in pieces is one call with all of them, and keeps its signature."""

    def part(**call):
        return {"candidates": [{"content": {"parts": [{"functionCall": call}]}}]}

    first = part(name="f", willContinue=True)
    last = part()
    last["candidates"][0]["content"]["parts"][0]["thoughtSignature"] = "s"
    pieces = [
        {"jsonPath": "$.where", "stringValue": "New ", "willContinue": True},
        {"jsonPath": "$.where", "stringValue": "York"},
        {"jsonPath": "$.days[1].n", "numberValue": 2},
        {"jsonPath": "$['a b']", "nullValue": "NULL_VALUE"},
        {"jsonPath": "$.dry", "boolValue": True},
        {"jsonPath": "$[0]", "boolValue": True},
    ]
    answer = accumulate(
        "gemini",
        first,
        *(part(partialArgs=[piece], willContinue=True) for piece in pieces),
        last,
        build_gemini_body("STOP"),
    )
    call, text = answer.message.parts
    assert (type(call), type(text), call.name, call.signature.data) == (ToolCall, Text, "f", "s")
    assert json.loads(call.arguments) == {"where": "New York", "days": [None, {"n": 2}], "a b": None, "dry": True}


# -- errors ------------------------------------------------------------------------------------------------------------

LONG = "Your input exceeds the context window of this model."
TOO_LONG = {"code": "context_length_exceeded", "message": LONG}
FAILED = {"type": "response.failed", "response": {"status": "failed", "error": TOO_LONG}}
SLOW = {"error": {"message": "slow down", "code": 429}, "choices": [{"delta": {}, "finish_reason": "error"}]}
OVERFLOW = {"error": {"message": "Overflow", "type": "invalid_request_error", "code": None}}
DETAILED = {"type": "api_error", "message": "m", "details": {"error_code": "compaction_unavailable"}}
BARE = {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}
BUSY = {"type": "overloaded_error", "message": "Overloaded"}
UNAVAILABLE = {"code": 503, "status": "UNAVAILABLE", "message": "try later"}


@pytest.mark.parametrize(
    ("api", "event", "code", "message", "status"),
    [
        ("anthropic", {"type": "error", "error": BUSY}, "overloaded_error", "Overloaded", None),
        ("anthropic", {"type": "error", "error": DETAILED}, "compaction_unavailable", "m", None),
        ("openai-chat", OVERFLOW, "invalid_request_error", "Overflow", None),
        ("openai-chat", SLOW, "", "slow down", 429),
        ("openai-chat", {"object": "error", "message": "too long", "code": 400}, "", "too long", 400),
        ("openai-chat", {"error": "broken"}, "", "broken", None),
        ("openai-chat", BARE, "context_length_exceeded", "too long", None),
        ("openai-responses", {"type": "error"} | TOO_LONG, "context_length_exceeded", LONG, None),
        ("openai-responses", {"type": "error", "error": TOO_LONG}, "context_length_exceeded", LONG, None),
        ("openai-responses", FAILED, "context_length_exceeded", LONG, None),
        ("gemini", {"error": UNAVAILABLE}, "UNAVAILABLE", "try later", 503),
    ],
)
def test_answer_stream_recognizes_errors_inside_a_stream(api, event, code, message, status):
    """The event of an error is kept whole, and the answer is not complete."""
    answer = accumulate(api, event)
    assert answer.error is not None
    assert (answer.error.code, answer.error.message, answer.error.status, answer.stop_reason) == (
        code,
        message,
        status,
        "error",
    )
    assert (answer.error.provider, json.loads(answer.error.body), answer.is_complete) == (api, event, False)


@pytest.mark.parametrize(("status_code", "is_error"), [(2013, True), (0, False)])
def test_parse_answer_reads_the_status_of_minimax(status_code, is_error):
    """MiniMax answers every error with HTTP 200 and a status beside the choices; 0 is a good answer."""
    status = {"status_code": status_code, "status_msg": "invalid params, context window exceeds limit (2013)"}
    choices = [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]
    answer = parse_answer("openai-chat", json.dumps({"choices": choices, "base_resp": status}).encode())
    assert (answer.error is not None) is is_error
    assert answer.error is None or classify_error(answer.error).kind == "context_window"


def test_parse_answer_returns_an_error_body_as_an_error():
    """An error body becomes an answer with nothing but its error."""
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}
    answer = parse_answer("anthropic", encode(body))
    assert answer.error is not None
    assert (answer.error.code, answer.stop_reason, answer.history_elements, json.loads(answer.error.body)) == (
        "invalid_request_error",
        "error",
        (),
        body,
    )


def test_to_report_passes_errors_reasons_and_usage_to_the_classifier():
    """The classifier gets the error of a stream, or the stop reason and usage of an answer."""
    assert classify_error(accumulate("openai-responses", FAILED).to_report()).kind == "context_window"
    full = build_anthropic_body("model_context_window_exceeded") | {"usage": CALL}
    verdict = classify_error(parse_answer("anthropic", encode(full)).to_report(window=245))
    assert (verdict.kind, verdict.requested) == ("context_window", 240)
    assert classify_error(
        parse_answer("anthropic", encode(build_anthropic_body("end_turn") | {"usage": CALL})).to_report(window=200)
    ).is_overflow
    assert (
        classify_error(parse_answer("openai-chat", encode(build_chat_body("stop"))).to_report(window=200)).kind
        == "content"
    )


@pytest.mark.parametrize("error", [None, {}, "", False])
def test_parse_answer_ignores_an_empty_error_field(error):
    """Some servers send ``error`` with nothing in it beside a good answer."""
    assert parse_answer("openai-chat", encode(build_chat_body("stop") | {"error": error})).error is None


def test_parse_answer_reads_choice_errors_and_unfinished_responses():
    """An error beside a choice counts; an unfinished response is not complete and is no error."""
    broken = build_chat_body("error")
    broken["choices"][0]["error"] = {"message": "upstream", "code": 502}
    answer = parse_answer("openai-chat", encode(broken))
    assert answer.error is not None
    assert (answer.error.status, answer.is_complete) == (502, False)
    broken["choices"][0]["error"] = None
    assert parse_answer("openai-chat", encode(broken | {"error": "x"})).error is not None
    for status in ("in_progress", "queued", "cancelled"):
        answer = parse_answer("openai-responses", encode(build_responses_body(status)))
        assert (answer.is_complete, answer.error) == (False, None)
    assert parse_answer("openai-responses", encode(build_responses_body("completed"))).is_complete


def test_answer_stream_keeps_the_first_error():
    """Later errors are consequences of the first."""
    answer = accumulate("openai-chat", {"error": "first"}, {"error": "second"})
    assert answer.error is not None
    assert answer.error.message == "first"


def test_answer_stream_recognizes_an_error_by_the_event_name():
    """Some servers name the event ``error`` but do not say so in its data."""
    fold = AnswerStream("openai-chat")
    for event in SseReader().feed(b'event: error\ndata: {"message": "gone", "code": "x"}\n\n'):
        fold.add_event(event)
    assert fold.build_answer().error is not None


# -- the first meaningful event ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "event", "begins"),
    [
        ("anthropic", {"type": "message_start", "message": {"content": []}}, False),
        ("anthropic", {"type": "ping"}, False),
        ("anthropic", {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, False),
        ("anthropic", {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "t"}}, True),
        ("anthropic", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}}, False),
        ("anthropic", {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "a"}}, True),
        ("anthropic", {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, False),
        ("anthropic", {"type": "error", "error": {"type": "overloaded_error"}}, False),
        ("openai-chat", {"choices": [{"delta": {"role": "assistant", "content": "", "refusal": None}}]}, False),
        ("openai-chat", {"choices": [{"delta": {"content": "a"}}]}, True),
        ("openai-chat", {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
        ("openai-chat", {"choices": [{"delta": {}, "finish_reason": "stop"}]}, False),
        ("openai-chat", {"choices": [], "usage": {"prompt_tokens": 1}}, False),
        ("openai-responses", {"type": "response.created", "response": {}}, False),
        ("openai-responses", {"type": "response.in_progress", "response": {}}, False),
        ("openai-responses", {"type": "response.output_item.added", "item": {"type": "message"}}, True),
        ("openai-responses", {"type": "response.output_text.delta", "delta": "a"}, True),
        ("openai-responses", {"type": "response.output_text.delta", "delta": ""}, False),
        ("openai-responses", FAILED, False),
        ("openai-responses", {"type": "response.completed", "response": {}}, False),
        ("gemini", {"candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}}]}, False),
        ("gemini", {"candidates": [{"content": {"parts": [{"text": "a"}]}}]}, True),
        ("gemini", {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f"}}]}}]}, True),
        ("gemini", {"candidates": [{"content": {"parts": [{"text": "", "thoughtSignature": "s"}]}}]}, True),
        ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}, False),
        ("gemini", {"usageMetadata": {"promptTokenCount": 1}}, False),
    ],
)
def test_add_event_returns_whether_the_answer_has_begun(api, event, begins):
    """Only output of the model begins an answer; until then another attempt can replace this one."""
    assert AnswerStream(api).add_event(StreamEvent(encode(event))) is begins


@pytest.mark.parametrize("data", [b"", b"[DONE]", b"ping", b"null", b"7"])
def test_add_event_ignores_events_without_an_object(data):
    """Keep-alives and end marks begin no answer; data that is no JSON is counted."""
    fold = AnswerStream("openai-chat")
    assert not fold.add_event(StreamEvent(data))
    assert fold.unreadable_events == (data == b"ping")


def test_parse_answer_rejects_unknown_apis_and_non_objects():
    """The error for an unknown API lists the known ones; a body that is no object is a ``FormatError``."""
    with pytest.raises(UnrecognizedContent, match="the APIs are anthropic"):
        AnswerStream("bedrock")
    with pytest.raises(UnrecognizedContent, match="the APIs are anthropic"):
        parse_window_usage("bedrock", b"{}")
    with pytest.raises(FormatError, match="not a JSON object"):
        parse_answer("gemini", b"<html>")
    with pytest.raises(FormatError, match="not a JSON object"):
        parse_answer("gemini", b"[" * 100_000)
