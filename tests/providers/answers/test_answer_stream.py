"""What answers say: usage, reasons, errors and the odd ways of servers, case by case."""

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


def raw(value):
    return json.dumps(value).encode()


def folded(api, *bodies):
    fold = AnswerStream(api)
    for body in bodies:
        fold.add_event(StreamEvent(body if isinstance(body, bytes) else raw(body)))
    return fold.build_answer()


# -- usage -------------------------------------------------------------------------------------------------------------

CALL = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30, "output_tokens": 5}
KEPT = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}
COMPACTING = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500}
SERVED = {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000}


@pytest.mark.parametrize(
    ("api", "told", "wanted"),
    [
        ("anthropic", CALL, Usage(240, 5, 200, 30)),
        ("anthropic", CALL | {"output_tokens_details": {"thinking_tokens": 3}}, Usage(240, 5, 200, 30, 3)),
        ("anthropic", {"input_tokens": 7, "cache_read_input_tokens": None, "output_tokens": 1}, Usage(7, 1)),
        ("anthropic", CALL | {"cache_creation": KEPT}, Usage(240, 5, 200, 30, cache_write_1h=20)),
        ("anthropic", {"input_tokens": 7, "cache_creation": KEPT}, Usage(7)),
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
def test_usage_has_one_sense(api, told, wanted):
    """``input`` is the whole prompt and ``output`` all that was made, whatever an API's fields leave out."""
    assert parse_window_usage(api, raw(told)) == wanted
    assert parse_billed_usage(api, raw(told)) == wanted
    assert wanted.total == wanted.input + wanted.output


def test_the_window_is_the_last_message_and_the_bill_is_everything():
    """Of Anthropic's iterations the last message counts for the window, never a compaction; all count for the bill."""
    top = {"input_tokens": 23_000, "output_tokens": 1_000}
    for iterations in ([COMPACTING, SERVED], [SERVED, COMPACTING]):
        told = raw(top | {"iterations": iterations})
        assert parse_window_usage("anthropic", told) == Usage(23_000, 1_000)
        assert parse_billed_usage("anthropic", told) == Usage(203_000, 4_500)
    loop = {"input_tokens": 50_000, "output_tokens": 3_000, "output_tokens_details": {"thinking_tokens": 40}}
    told = raw(loop | {"iterations": [SERVED, SERVED | {"input_tokens": 27_000, "output_tokens": 2_000}]})
    assert parse_window_usage("anthropic", told) == Usage(27_000, 2_000)
    assert parse_billed_usage("anthropic", told) == Usage(50_000, 3_000, 0, 0, 40)
    alone = raw(top | {"iterations": [COMPACTING]})
    assert (parse_window_usage("anthropic", alone), parse_billed_usage("anthropic", alone)) == (
        Usage(23_000, 1_000),
        Usage(203_000, 4_500),
    )
    kept = [call | {"cache_creation_input_tokens": 20, "cache_creation": KEPT} for call in (SERVED, COMPACTING)]
    assert parse_billed_usage("anthropic", raw(kept[0] | {"iterations": kept})).cache_write_1h == 40
    fallback = [SERVED, SERVED | {"type": "fallback_message", "input_tokens": 5}]
    assert parse_window_usage("anthropic", raw(top | {"iterations": fallback})) == Usage(5, 1_000)


@pytest.mark.parametrize("told", [None, b"null", b"{}", b"[1]", b'"x"', b'{"a":{}}', b'{"a":"1"}'])
@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses", "gemini"])
def test_no_numbers_are_no_usage(api, told):
    """Usage that is missing, null or of another shape is nothing, not zeros."""
    assert parse_window_usage(api, told) is None
    assert parse_billed_usage(api, told) is None


@pytest.mark.parametrize("count", [-5, "7", None, [1], 1e300, True])
def test_odd_counts_do_no_harm(count):
    """A negative count is none, a number out of all bounds is bounded, other things count for nothing."""
    found = parse_window_usage("openai-chat", raw({"prompt_tokens": count, "completion_tokens": 3}))
    assert found is not None
    assert 0 <= found.input <= 2**53
    assert found.output == 3


# -- reasons -----------------------------------------------------------------------------------------------------------


def claude(reason, content=({"type": "text", "text": "a"},)):
    return {"role": "assistant", "content": list(content), "stop_reason": reason}


def chat(reason, **told):
    return {"choices": [{"message": {"content": "a"} | told, "finish_reason": reason}]}


def google(reason, *parts):
    return {"candidates": [{"content": {"parts": list(parts) or [{"text": "a"}]}, "finishReason": reason}]}


def responses(status, reason=None, *items, **fields):
    return {"status": status, "incomplete_details": reason and {"reason": reason}, "output": list(items)} | fields


CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEM_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
NO = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}


@pytest.mark.parametrize(
    ("api", "body", "stop", "native"),
    [
        ("anthropic", claude("end_turn"), "end", "end_turn"),
        ("anthropic", claude("tool_use"), "tool", "tool_use"),
        ("anthropic", claude("max_tokens"), "length", "max_tokens"),
        ("anthropic", claude("model_context_window_exceeded"), "window", "model_context_window_exceeded"),
        ("anthropic", claude("pause_turn"), "pause", "pause_turn"),
        ("anthropic", claude("compaction"), "compaction", "compaction"),
        ("anthropic", claude("refusal"), "refusal", "refusal"),
        ("anthropic", claude("stop_sequence"), "stop_sequence", "stop_sequence"),
        ("anthropic", claude("of_tomorrow"), "unknown", "of_tomorrow"),
        ("anthropic", claude(None), "unknown", ""),
        ("openai-chat", chat("stop"), "end", "stop"),
        ("openai-chat", chat("stop", tool_calls=[CHAT_CALL]), "tool", "stop"),
        ("openai-chat", chat("stop", content=None, refusal="no"), "refusal", "stop"),
        ("openai-chat", chat("length"), "length", "length"),
        ("openai-chat", chat("length", tool_calls=[CHAT_CALL]), "length", "length"),
        ("openai-chat", chat("MAX_TOKENS"), "length", "MAX_TOKENS"),
        ("openai-chat", chat("content_filter"), "content_filter", "content_filter"),
        ("openai-chat", chat("model_length"), "window", "model_length"),
        ("openai-chat", chat("error"), "error", "error"),
        ("openai-chat", chat("of_tomorrow"), "unknown", "of_tomorrow"),
        ("openai-responses", responses("completed"), "end", "completed"),
        ("openai-responses", responses("completed", None, ITEM_CALL), "tool", "completed"),
        ("openai-responses", responses("completed", None, NO), "refusal", "completed"),
        ("openai-responses", responses("completed", None, {"type": "compaction"}), "compaction", "completed"),
        ("openai-responses", responses("incomplete", "max_output_tokens"), "length", "max_output_tokens"),
        ("openai-responses", responses("incomplete", "content_filter"), "content_filter", "content_filter"),
        ("openai-responses", responses("incomplete", "steered"), "pause", "steered"),
        ("openai-responses", responses("incomplete", "of_tomorrow"), "unknown", "of_tomorrow"),
        ("openai-responses", responses("cancelled"), "error", "cancelled"),
        ("gemini", google("STOP"), "end", "STOP"),
        ("gemini", google("STOP", {"functionCall": {"name": "f"}}), "tool", "STOP"),
        ("gemini", google("MAX_TOKENS"), "length", "MAX_TOKENS"),
        ("gemini", google("SAFETY"), "content_filter", "SAFETY"),
        ("gemini", google("MALFORMED_FUNCTION_CALL"), "error", "MALFORMED_FUNCTION_CALL"),
        ("gemini", google("CONTINUATION"), "pause", "CONTINUATION"),
        ("gemini", google("OTHER"), "unknown", "OTHER"),
        ("gemini", {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, "content_filter", "PROHIBITED_CONTENT"),
    ],
)
def test_why_it_stopped(api, body, stop, native):
    """Each API's reason becomes one of a closed list, its own word stays, and a word nobody knows is unknown."""
    said = parse_answer(api, raw(body))
    assert (said.stop_reason, said.native_stop_reason, said.error) == (stop, native, None)


# -- what goes into the history ----------------------------------------------------------------------------------------


def test_history_is_what_a_request_takes_back():
    """Empty fields, annotations and the sound itself stay behind; a call without words has content null."""
    told = {"role": "assistant", "content": "", "refusal": None, "annotations": [], "tool_calls": [CHAT_CALL]}
    (element,) = parse_answer("openai-chat", raw(chat("tool_calls", **told))).history_elements
    assert json.loads(element) == {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
    told = {"content": None, "audio": {"id": "audio_1", "data": "AAAA", "transcript": "hi"}}
    (element,) = parse_answer("openai-chat", raw(chat("stop", **told))).history_elements
    assert json.loads(element) == {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert parse_answer("gemini", raw(google("STOP"))).history_elements == (
        b'{"role":"model","parts":[{"text": "a"}]}',
    )


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("anthropic", claude("end_turn", [])),
        ("openai-chat", chat("stop", content="")),
        ("openai-chat", {"choices": []}),
        ("openai-responses", responses("completed")),
        ("gemini", {"candidates": [{"finishReason": "STOP"}]}),
        ("gemini", {"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}),
    ],
)
def test_an_empty_answer_has_no_history(api, body):
    """An answer without a word is no message that any API would take back."""
    said = parse_answer(api, raw(body))
    assert (said.history_elements, said.message.parts) == ((), ())


def test_unknown_blocks_and_items_are_kept():
    """What nobody knows yet is an opaque part with its bytes, and goes back as it came."""
    block = {"type": "of_tomorrow", "n": 123456789012345678901234567890, "f": 1.10}
    said = parse_answer("anthropic", b'{"content":[' + raw(block) + b"]}")
    assert said.message.parts[0].kind == "of_tomorrow"
    assert raw(block) in said.history_elements[0]
    said = parse_answer("openai-responses", b'{"status":"completed","output":[' + raw(block) + b", 5]}")
    assert said.history_elements == (raw(block),)
    assert isinstance(said.message.parts[0], Opaque)


def test_the_first_choice_is_the_answer():
    """Of several choices or candidates the one with the smallest index counts, wherever it stands."""
    choices = [{"index": n, "message": {"content": str(n)}, "finish_reason": "stop"} for n in (2, 0, 1)]
    assert parse_answer("openai-chat", raw({"choices": choices})).message.text == "0"
    deltas = [{"choices": [{"index": n, "delta": {"content": str(n)}}]} for n in (1, 0, 1, 0)]
    assert folded("openai-chat", *deltas).message.text == "00"


def test_half_a_surrogate_pair_is_a_character_again():
    """Text that no JSON reader takes becomes U+FFFD instead of an error; the rest of the answer stands."""
    said = parse_answer("anthropic", b'{"content":[{"type":"text","text":"a\\ud83d"}],"stop_reason":"end_turn"}')
    assert (said.message.text, said.stop_reason) == ("a\ufffd", "end")
    said = folded("openai-chat", b'{"choices":[{"delta":{"content":"a\xff"}}]}')
    assert said.message.text == "a\ufffd"


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
def test_an_answer_tells_that_it_came_damaged(body, damaged):
    """It did where something in it was no text: not where the model says U+FFFD, or something is no JSON for others."""
    assert folded("openai-chat", {"choices": []}, body).is_damaged == damaged
    if body.startswith(b"{"):
        assert parse_answer("openai-chat", body.replace(b"delta", b"message")).is_damaged == damaged


@pytest.mark.parametrize(
    "stream", [b"data: {\xff\n\n", b"event: x\nda\xffta: {}\n\n", b"data: {}\n\xff\ndata: {}\n\n", b"\xffdata: {}\n\n"]
)
def test_words_that_a_stream_lost_are_damage(stream):
    """An event that nobody can read, or whose line or end is lost, takes its words along; a comment has none."""
    fold = AnswerStream("anthropic")
    for event in SseReader().feed(b": ping\n\ndata: {}\n\ndata: none\n\n" + stream):
        assert not fold.build_answer().is_damaged
        fold.add_event(event)
    assert fold.build_answer().is_damaged


# -- events ------------------------------------------------------------------------------------------------------------


def test_anthropic_corrects_usage_and_model_on_the_way():
    """The end of a message overrides what its beginning said, null does not, and a fallback names who served it."""
    start = {"id": "m", "model": "a", "role": "assistant", "content": [], "usage": CALL, "stop_reason": None}
    said = folded(
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
    assert (said.model, said.id, said.stop_reason, said.is_complete) == ("b", "m", "end", True)
    assert said.usage == Usage(241, 9, 200, 30)


def test_arguments_that_were_cut_are_kept_as_text():
    """Half an object is no input of a tool; what came of it is kept inside of one."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    said = folded(
        "anthropic",
        {"type": "message_start", "message": {"model": "a"}},
        {"type": "content_block_start", "index": 0, "content_block": use},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": "b'}},
    )
    (call,) = said.message.calls
    assert json.loads(call.arguments) == {"arguments": '{"a": "b'}
    assert not said.is_complete


def test_deltas_of_tomorrow_add_their_words():
    """A kind of delta nobody knows grows the field it names, as every kind so far does."""
    said = folded(
        "anthropic",
        {"type": "content_block_start", "index": 0, "content_block": {"type": "new", "notes": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "notes_delta", "notes": "b"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "notes_delta", "notes": "c", "n": 1}},
    )
    assert json.loads(said.history_elements[0])["content"] == [{"type": "new", "notes": "abc", "n": 1}]


def test_a_signature_comes_whole():
    """A signature and a compaction are told in one piece: a second one stands in for the first."""
    said = folded(
        "anthropic",
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "a"}},
        *({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": one}} for one in "st"),
    )
    assert said.message.parts[0].signature.data == "t"


def test_blocks_stand_in_the_order_of_their_index():
    """Blocks are in the order of their index, and input that came whole is not undone by an empty delta."""
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    said = folded(
        "anthropic",
        {"type": "content_block_start", "index": 1, "content_block": use},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ""}},
    )
    assert json.loads(said.history_elements[0])["content"] == [{"type": "text", "text": "x"}, use]


def test_lists_without_index_are_joined():
    """Elements that nothing numbers (citations, token probabilities) stand one behind the other."""
    fold = AnswerStream("openai-chat")
    for n in (1, 2):
        delta = {"annotations": [{"type": "url_citation", "n": n}], "content": "a"}
        fold.add_event(
            StreamEvent(raw({"choices": [{"delta": delta, "logprobs": {"content": [{"token": "a", "n": n}]}}]}))
        )
    assert json.loads(fold.build_answer().history_elements[0]) == {"role": "assistant", "content": "aa"}
    (choice,) = json.loads(fold.build_body())["choices"]
    assert [one["n"] for one in choice["message"]["annotations"]] == [1, 2]
    assert choice["logprobs"] == {"content": [{"token": "a", "n": 1}, {"token": "a", "n": 2}]}


def fragment(index, identity=None, name=None, arguments=None):
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "id": identity, "function": function}
    delta = {"tool_calls": [{key: value for key, value in call.items() if value is not None}]}
    return {"choices": [{"index": 0, "delta": delta}]}


@pytest.mark.parametrize(
    "chunks",
    [
        [
            fragment(0, "a", "f", "{"),
            fragment(1, "b", "g", "{"),
            fragment(0, None, None, "}"),
            fragment(1, None, None, "}"),
        ],
        [fragment(0, "a", "f", "{}"), fragment(0, "b", "g", "{}")],
        [fragment(None, "a", "f", "{}"), fragment(None, "b", "g", "{}")],
        [fragment(0, "a", "f", ""), fragment(0, "a", "f", "{}"), fragment(1, "b", "g", "{"), fragment(1, "", "g", "}")],
    ],
    ids=["interleaved", "one index for all", "no index", "names and ids repeated"],
)
def test_fragments_of_calls_find_their_call(chunks):
    """Calls are put together by index, and by id where a server gives all the same index or none."""
    calls = folded("openai-chat", *chunks).message.calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [("a", "f", "{}"), ("b", "g", "{}")]


def test_calls_without_a_type_get_one():
    """Servers that leave ``type`` out of calls, whole or in chunks: a request has it, and calls stand by ``index``."""
    first, second = ({"id": name, "function": {"name": name, "arguments": "{}"}} for name in "ab")
    typed = [call | {"type": "function"} for call in (first, second)]
    deltas = [{"tool_calls": [call | {"index": index}]} for index, call in ((1, second), (0, first))]
    streamed = folded("openai-chat", *({"choices": [{"index": 0, "delta": delta}]} for delta in deltas))
    whole = parse_answer("openai-chat", raw(chat("tool_calls", tool_calls=[first, second])))
    results = [{"role": "tool", "tool_call_id": name, "content": "r"} for name in "ab"]
    for one in (streamed, whole):
        message = json.loads(one.history_elements[0])
        assert message["tool_calls"] == typed
        asked = {"model": "m", "messages": [{"role": "user", "content": "x"}, message, *results]}
        assert [found for found in validate_request(raw(asked), "openai-chat") if found.level == "error"] == []


def test_custom_calls_without_a_type():
    """A call with ``custom`` in place of ``function`` is of that type."""
    call = {"id": "a", "custom": {"name": "x", "input": "y"}}
    (element,) = parse_answer("openai-chat", raw(chat("tool_calls", tool_calls=[call]))).history_elements
    assert json.loads(element)["tool_calls"] == [call | {"type": "custom"}]


def test_a_call_without_index_goes_on_in_the_last_one():
    """A fragment with neither index nor id belongs to the call before it."""
    said = folded("openai-chat", fragment(None, "a", "f", '{"x"'), fragment(None, None, None, ": 1}"))
    assert [(call.id, call.arguments) for call in said.message.calls] == [("a", '{"x": 1}')]


def test_reasoning_beside_the_content():
    """Reasoning of compatible servers is thinking, and its details are put together by their index."""
    details = [{"index": 0, "type": "reasoning.text", "text": text, "format": "x"} for text in ("th", "ink")]
    deltas = [
        {"reasoning": "a", "reasoning_details": [details[0]]},
        {"reasoning": "b", "reasoning_details": [details[1]]},
    ]
    said = folded("openai-chat", *({"choices": [{"delta": delta}]} for delta in [*deltas, {"content": "c"}]))
    assert [part.text for part in said.message.parts if isinstance(part, Thinking)] == ["ab"]
    kept = json.loads(said.history_elements[0])["reasoning_details"]
    assert kept == [{"index": 0, "type": "reasoning.text", "text": "think", "format": "x"}]


def test_chat_is_complete_without_its_mark():
    """A reason or ``[DONE]`` ends a stream of Chat: some servers send only one of them."""
    words = {"choices": [{"delta": {"content": "a"}}]}
    assert not folded("openai-chat", words).is_complete
    assert folded("openai-chat", words, b"[DONE]").is_complete
    assert folded("openai-chat", words, {"choices": [{"delta": {}, "finish_reason": "stop"}]}).is_complete


def test_what_is_done_wins_over_what_was_added():
    """An item that was done replaces the one that was added, whose encrypted content may be unfinished."""
    item = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "half"}
    said = folded(
        "openai-responses",
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item | {"encrypted_content": "whole"}},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    )
    assert [part.signature.data for part in said.message.parts] == ["whole"]


def test_words_of_an_unfinished_item_are_kept():
    """When a stream of Responses is cut, what the deltas brought is there."""
    added = {"type": "response.output_item.added", "output_index": 1, "item": ITEM_CALL | {"arguments": ""}}
    words = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hi"}
    message = {"type": "response.output_item.added", "output_index": 0, "item": NO | {"content": []}}
    args = {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a"'}
    said = folded("openai-responses", message, words, added, args, words | {"delta": " you"})
    assert said.message.text == "hi you"
    assert [call.arguments for call in said.message.calls] == ['{"a"']
    assert not said.is_complete


def test_signed_parts_stay_apart():
    """Words join their neighbours of the same kind; a signature, and what stands behind it, is never merged."""
    parts = [
        [{"text": "a", "thought": True}],
        [{"text": "b", "thought": True}, {"text": "c"}],
        [{"text": "d"}, {"text": "e", "thoughtSignature": "s1"}, {"text": "f"}],
        [{"text": "g"}, {"text": "", "thoughtSignature": "s2"}, {"text": ""}],
    ]
    chunks = [{"candidates": [{"content": {"parts": some}}]} for some in parts]
    chunks[0]["usageMetadata"] = {"promptTokenCount": 3, "thoughtsTokenCount": 4}
    chunks[1]["usageMetadata"] = {"promptTokenCount": 5, "candidatesTokenCount": None}
    said = folded("gemini", *chunks, google("STOP", {"text": ""}))
    assert said.usage == Usage(5, 4, 0, 0, 4)
    assert json.loads(said.history_elements[0])["parts"] == [
        {"text": "ab", "thought": True},
        {"text": "cd"},
        {"text": "e", "thoughtSignature": "s1"},
        {"text": "fg"},
        {"text": "", "thoughtSignature": "s2"},
    ]


def test_arguments_of_gemini_in_pieces():
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
    said = folded(
        "gemini", first, *(part(partialArgs=[one], willContinue=True) for one in pieces), last, google("STOP")
    )
    call, text = said.message.parts
    assert (type(call), type(text), call.name, call.signature.data) == (ToolCall, Text, "f", "s")
    assert json.loads(call.arguments) == {"where": "New York", "days": [None, {"n": 2}], "a b": None, "dry": True}


# -- errors ------------------------------------------------------------------------------------------------------------

LONG = "Your input exceeds the context window of this model."
TOO_LONG = {"code": "context_length_exceeded", "message": LONG}
FAILED = {"type": "response.failed", "response": {"status": "failed", "error": TOO_LONG}}
SLOW = {"error": {"message": "slow down", "code": 429}, "choices": [{"delta": {}, "finish_reason": "error"}]}
OVERFLOW = {"error": {"message": "Overflow", "type": "invalid_request_error", "code": None}}
DETAILED = {"type": "api_error", "message": "m", "details": {"error_code": "compaction_unavailable"}}
BUSY = {"type": "overloaded_error", "message": "Overloaded"}
AWAY = {"code": 503, "status": "UNAVAILABLE", "message": "try later"}


@pytest.mark.parametrize(
    ("api", "event", "code", "message", "status"),
    [
        ("anthropic", {"type": "error", "error": BUSY}, "overloaded_error", "Overloaded", None),
        ("anthropic", {"type": "error", "error": DETAILED}, "compaction_unavailable", "m", None),
        ("openai-chat", OVERFLOW, "invalid_request_error", "Overflow", None),
        ("openai-chat", SLOW, "", "slow down", 429),
        ("openai-chat", {"object": "error", "message": "too long", "code": 400}, "", "too long", 400),
        ("openai-chat", {"error": "broken"}, "", "broken", None),
        ("openai-responses", {"type": "error"} | TOO_LONG, "context_length_exceeded", LONG, None),
        ("openai-responses", {"type": "error", "error": TOO_LONG}, "context_length_exceeded", LONG, None),
        ("openai-responses", FAILED, "context_length_exceeded", LONG, None),
        ("gemini", {"error": AWAY}, "UNAVAILABLE", "try later", 503),
    ],
)
def test_an_error_behind_http_200(api, event, code, message, status):
    """An error inside of a stream is recognised, its event is kept whole, and the answer is not complete."""
    said = folded(api, event)
    assert said.error is not None
    assert (said.error.code, said.error.message, said.error.status, said.stop_reason) == (
        code,
        message,
        status,
        "error",
    )
    assert (said.error.provider, json.loads(said.error.body), said.is_complete) == (api, event, False)


def test_an_error_body_is_an_answer_with_an_error():
    """The body of an error says nothing else, so it can go where answers go."""
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}
    said = parse_answer("anthropic", raw(body))
    assert said.error is not None
    assert (said.error.code, said.stop_reason, said.history_elements, json.loads(said.error.body)) == (
        "invalid_request_error",
        "error",
        (),
        body,
    )


def test_an_answer_is_judged_by_the_classifier():
    """What a stream ends with goes to the classifier as it is: its error, or its reason and usage."""
    assert classify_error(folded("openai-responses", FAILED).to_report()).kind == "context_window"
    full = claude("model_context_window_exceeded") | {"usage": CALL}
    verdict = classify_error(parse_answer("anthropic", raw(full)).to_report(window=245))
    assert (verdict.kind, verdict.requested) == ("context_window", 240)
    assert classify_error(
        parse_answer("anthropic", raw(claude("end_turn") | {"usage": CALL})).to_report(window=200)
    ).is_overflow
    assert classify_error(parse_answer("openai-chat", raw(chat("stop"))).to_report(window=200)).kind == "content"


@pytest.mark.parametrize("error", [None, {}, "", False])
def test_an_empty_error_is_none(error):
    """Some servers send ``error`` with nothing in it beside a good answer."""
    assert parse_answer("openai-chat", raw(chat("stop") | {"error": error})).error is None


def test_an_error_of_a_choice_and_an_answer_in_the_background():
    """An error beside a choice counts; a response that is not finished is not complete, and no error either."""
    broken = chat("error")
    broken["choices"][0]["error"] = {"message": "upstream", "code": 502}
    said = parse_answer("openai-chat", raw(broken))
    assert said.error is not None
    assert (said.error.status, said.is_complete) == (502, False)
    broken["choices"][0]["error"] = None
    assert parse_answer("openai-chat", raw(broken | {"error": "x"})).error is not None
    for status in ("in_progress", "queued", "cancelled"):
        said = parse_answer("openai-responses", raw(responses(status)))
        assert (said.is_complete, said.error) == (False, None)
    assert parse_answer("openai-responses", raw(responses("completed"))).is_complete


def test_the_first_error_counts():
    """What follows an error is its consequence."""
    said = folded("openai-chat", {"error": "first"}, {"error": "second"})
    assert said.error is not None
    assert said.error.message == "first"


def test_an_event_named_error_is_one():
    """The name of an event is enough, for servers whose data does not say so."""
    fold = AnswerStream("openai-chat")
    for event in SseReader().feed(b'event: error\ndata: {"message": "gone", "code": "x"}\n\n'):
        fold.add_event(event)
    assert fold.build_answer().error is not None


# -- the first meaningful event ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "event", "wanted"),
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
def test_what_is_meaningful(api, event, wanted):
    """Only what the model said is meaningful: until then another try can take the place of this one."""
    assert AnswerStream(api).add_event(StreamEvent(raw(event))) is wanted


@pytest.mark.parametrize("data", [b"", b"[DONE]", b"ping", b"null", b"7"])
def test_events_without_an_object_mean_nothing(data):
    """Keep-alives and marks are not meaningful; data that is no JSON is counted."""
    fold = AnswerStream("openai-chat")
    assert not fold.add_event(StreamEvent(data))
    assert fold.unreadable_events == (data == b"ping")


def test_wrong_use_is_a_typed_error():
    """An API nobody knows and a body that is no object are errors that say what to do."""
    with pytest.raises(UnrecognizedContent, match="the APIs are anthropic"):
        AnswerStream("bedrock")
    with pytest.raises(UnrecognizedContent, match="the APIs are anthropic"):
        parse_window_usage("bedrock", b"{}")
    with pytest.raises(FormatError, match="not a JSON object"):
        parse_answer("gemini", b"<html>")
    with pytest.raises(FormatError, match="not a JSON object"):
        parse_answer("gemini", b"[" * 100_000)
