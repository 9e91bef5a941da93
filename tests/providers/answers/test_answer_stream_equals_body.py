"""Laws of answer streams: a stream gives the same answer as the body without streaming, and never raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import FormatError
from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.common.sse import JsonArrayReader, SseReader, StreamEvent
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses

APIS = ("anthropic", "openai-chat", "openai-responses", "gemini")
DECODE = {module.API_NAME: module.decode_message for module in (anthropic, openai_chat, gemini)} | {
    "openai-responses": openai_responses.decode_message
}

# -- small things ------------------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
NAMES = st.sampled_from(["ls", "read_file", "mcp__x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=3)
COUNTS = st.integers(0, 10**6)
UNKNOWN_BLOCKS = st.fixed_dictionaries({"type": st.just("of_tomorrow"), "what": VALUES})


def split_text(draw, text):
    """Draw a split of ``text`` into pieces, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def encode_events(bodies, *, named):
    """Encode the bodies as server-sent events."""
    lines = [f"event: {body['type']}\n" if named else "" for body in bodies]
    return "".join(f"{line}data: {json.dumps(body)}\n\n" for line, body in zip(lines, bodies, strict=True)).encode()


def accumulate(api, data):
    """Return the answer of a stream; whether an event begins the answer does not depend on earlier events."""
    answer_stream, reader = AnswerStream(api), SseReader()
    for event in [*reader.feed(data), *reader.close()]:
        assert answer_stream.add_event(event) == AnswerStream(api).add_event(event)
    return answer_stream.build_answer()


def flatten_answer(answer):
    """Return everything in an answer as a comparable tuple."""
    history = [json.loads(element) for element in answer.history_elements]
    return (
        history,
        answer.stop_reason,
        answer.native_stop_reason,
        answer.usage,
        answer.billed_usage,
        answer.model,
        answer.id,
        answer.error,
        answer.is_complete,
    )


# -- Anthropic ---------------------------------------------------------------------------------------------------------

ANTHROPIC_STOPS = st.sampled_from(
    [
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "compaction",
        "refusal",
        "model_context_window_exceeded",
        "new",
    ]
)
CITATIONS = st.lists(
    st.fixed_dictionaries({"type": st.just("char_location"), "cited_text": WORDS}), min_size=1, max_size=2
)
BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}, optional={"citations": CITATIONS}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": WORDS | st.just(""), "signature": WORDS}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": WORDS}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["tool_use", "server_tool_use"]), "id": WORDS, "name": NAMES, "input": OBJECTS}
    ),
    st.fixed_dictionaries({"type": st.just("compaction"), "content": st.none() | WORDS, "encrypted_content": WORDS}),
    st.fixed_dictionaries({"type": st.just("web_search_tool_result"), "tool_use_id": WORDS, "content": st.just([])}),
    UNKNOWN_BLOCKS,
)


def build_usage_fields():
    return {
        "input_tokens": COUNTS,
        "output_tokens": COUNTS,
        "cache_read_input_tokens": COUNTS,
        "cache_creation_input_tokens": COUNTS,
        "cache_creation": st.fixed_dictionaries({"ephemeral_1h_input_tokens": COUNTS}),
    }


ITERATIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["message", "compaction", "advisor_message"])} | build_usage_fields()
    ),
    max_size=3,
)
ANTHROPIC = st.fixed_dictionaries(
    {
        "id": WORDS,
        "type": st.just("message"),
        "role": st.just("assistant"),
        "model": NAMES,
        "content": st.lists(BLOCKS, max_size=4),
        "stop_reason": ANTHROPIC_STOPS,
        "stop_sequence": st.none(),
        "usage": st.fixed_dictionaries(build_usage_fields(), optional={"iterations": ITERATIONS}),
    }
)


def iter_block_events(draw, index, block):
    """Yield the events of one block."""
    started, deltas = dict(block), []
    kind = block["type"]
    if kind in ("text", "thinking"):
        started[kind] = ""
        deltas += [{"type": f"{kind}_delta", kind: piece} for piece in split_text(draw, block[kind])]
        if "signature" in block:
            started["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        if "citations" in block:
            started["citations"] = []
            deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
    elif kind == "compaction":
        started |= {"content": None, "encrypted_content": None}
        deltas.append(block | {"type": "compaction_delta"})
    elif "input" in block:
        started["input"] = {}
        text = json.dumps(block["input"]) if block["input"] else ""
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in split_text(draw, text)]
    yield {"type": "content_block_start", "index": index, "content_block": started}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


@st.composite
def anthropic_streams(draw):
    body = draw(ANTHROPIC)
    first = body["usage"] | {"output_tokens": 1, "input_tokens": 5}
    out = [{"type": "message_start", "message": body | {"content": [], "stop_reason": None, "usage": first}}]
    for index, block in enumerate(body["content"]):
        out += iter_block_events(draw, index, block)
        out += draw(st.sampled_from([[], [{"type": "ping"}], [{"type": "of_tomorrow", "index": index}]]))
    late = {key: value for key, value in body["usage"].items() if key != "cache_creation"}
    out.append({"type": "message_delta", "delta": {"stop_reason": body["stop_reason"]}, "usage": late})
    return body, encode_events([*out, {"type": "message_stop"}], named=True)


# -- Chat --------------------------------------------------------------------------------------------------------------

CALLS = st.builds(
    lambda name, args: {"type": "function", "function": {"name": name, "arguments": json.dumps(args)}}, NAMES, OBJECTS
)
CHAT_USAGE = st.fixed_dictionaries(
    {"prompt_tokens": COUNTS, "completion_tokens": COUNTS, "prompt_tokens_details": st.just({"cached_tokens": 3})}
)


@st.composite
def chat_streams(draw):
    calls = [call | {"id": f"call_{index}"} for index, call in enumerate(draw(st.lists(CALLS, max_size=3)))]
    message = {"content": draw(WORDS | st.none()), "refusal": draw(st.none() | WORDS), "annotations": []}
    message |= draw(st.sampled_from([{}, {"reasoning_content": "I think"}])) | ({"tool_calls": calls} if calls else {})
    reason = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter", "function_call", "of_tomorrow"]))
    head = {"id": draw(WORDS), "model": draw(NAMES), "created": 1}
    body = head | {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant"} | message, "finish_reason": reason}],
        "usage": draw(CHAT_USAGE),
    }
    deltas = [{"role": "assistant", "content": "" if message["content"] else None, "refusal": None}]
    for key in ("reasoning_content", "content", "refusal"):
        deltas += [{key: piece} for piece in split_text(draw, message.get(key) or "")] if message.get(key) else []
    for index, call in enumerate(calls):
        empty = call["function"] | {"arguments": ""}
        deltas.append({"tool_calls": [call | {"index": index, "function": empty}]})
        parts = split_text(draw, call["function"]["arguments"])
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in parts]
    chunks = [head | {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": None})
    chunks.append(head | {"choices": [], "usage": body["usage"]})
    return body, encode_events(chunks, named=False) + draw(st.sampled_from([b"", b"data: [DONE]", b"data: [DONE]\n\n"]))


# -- Responses ---------------------------------------------------------------------------------------------------------


def item(kind, **fields):
    fixed = {"type": st.just(kind), "id": WORDS, "status": st.just("completed")}
    return st.fixed_dictionaries(fixed | fields)


TEXTS = st.builds(lambda text: {"type": "output_text", "text": text, "annotations": [], "logprobs": []}, WORDS)
REFUSALS = st.builds(lambda text: {"type": "refusal", "refusal": text}, WORDS)
SUMMARIES = st.lists(st.builds(lambda text: {"type": "summary_text", "text": text}, WORDS), max_size=2)
ITEMS = st.one_of(
    item("message", role=st.just("assistant"), content=st.lists(TEXTS | REFUSALS, min_size=1, max_size=2)),
    item("reasoning", summary=SUMMARIES, encrypted_content=WORDS),
    item("function_call", call_id=WORDS, name=NAMES, arguments=OBJECTS.map(json.dumps)),
    item("custom_tool_call", call_id=WORDS, name=NAMES, input=WORDS),
    item("compaction", encrypted_content=WORDS),
    item("of_tomorrow", what=VALUES),
)
RESPONSES_USAGE = st.fixed_dictionaries(
    {
        "input_tokens": COUNTS,
        "input_tokens_details": st.just({"cached_tokens": 2, "cache_write_tokens": 1}),
        "output_tokens": COUNTS,
        "output_tokens_details": st.just({"reasoning_tokens": 4}),
        "total_tokens": COUNTS,
    }
)
ENDS = [
    ("completed", None),
    ("incomplete", "max_output_tokens"),
    ("incomplete", "content_filter"),
    ("incomplete", "new"),
]


@st.composite
def responses_streams(draw):
    output = draw(st.lists(ITEMS, max_size=4))
    status, reason = draw(st.sampled_from(ENDS))
    body = {"id": draw(WORDS), "object": "response", "model": draw(NAMES), "status": status, "error": None}
    body |= {"incomplete_details": reason and {"reason": reason}, "output": output, "usage": draw(RESPONSES_USAGE)}
    started = body | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    out = [{"type": f"response.{kind}", "response": started} for kind in ("created", "in_progress")]
    for index, item_dict in enumerate(output):
        empty = {"encrypted_content": None, "content": [], "summary": [], "arguments": "", "input": ""}
        added = item_dict | {key: value for key, value in empty.items() if key in item_dict} | {"status": "in_progress"}
        out.append({"type": "response.output_item.added", "output_index": index, "item": added})
        for piece in split_text(draw, item_dict.get("arguments", "")):
            kind = "response.function_call_arguments.delta"
            out.append({"type": kind, "output_index": index, "item_id": item_dict["id"], "delta": piece})
        out.append({"type": "response.output_item.done", "output_index": index, "item": item_dict})
    repeated = body | {"output": output if draw(st.booleans()) else []}
    out.append({"type": f"response.{status}", "response": repeated})
    return body, encode_events([event | {"sequence_number": n} for n, event in enumerate(out)], named=True)


# -- Gemini ------------------------------------------------------------------------------------------------------------

PARTS = st.one_of(
    st.fixed_dictionaries({"text": WORDS}),
    st.fixed_dictionaries({"text": WORDS, "thought": st.sampled_from([True])}),
    st.fixed_dictionaries({"text": WORDS | st.just(""), "thoughtSignature": WORDS}),
    st.fixed_dictionaries(
        {"functionCall": st.fixed_dictionaries({"name": NAMES, "args": OBJECTS}, optional={"id": WORDS})},
        optional={"thoughtSignature": WORDS},
    ),
    st.fixed_dictionaries({"inlineData": st.just({"mimeType": "image/png", "data": "iVBORw0KGgo="})}),
)
GEMINI_USAGE = st.fixed_dictionaries(
    {"promptTokenCount": COUNTS, "candidatesTokenCount": COUNTS, "totalTokenCount": COUNTS},
    optional={"thoughtsTokenCount": COUNTS, "cachedContentTokenCount": COUNTS, "toolUsePromptTokenCount": COUNTS},
)


def drop_mergeable_neighbours(parts):
    """Drop texts that would merge with the part before them: the API never splits a text into two such parts."""
    out = []
    for part in parts:
        if not (out and part.keys() <= {"text", "thought"} and part.keys() == out[-1].keys()):
            out.append(part)
    return out


@st.composite
def gemini_streams(draw):
    parts = drop_mergeable_neighbours(draw(st.lists(PARTS, min_size=1, max_size=5)))
    reason = draw(st.sampled_from(["STOP", "MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", "OTHER", "NEW"]))
    head = {"modelVersion": draw(NAMES), "responseId": draw(WORDS)}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}
    body = head | {"candidates": [candidate], "usageMetadata": draw(GEMINI_USAGE)}
    chunks = []
    for part in parts:
        cut = (
            [{**part, "text": piece} for piece in split_text(draw, part["text"])] if _is_unsigned_text(part) else [part]
        )
        chunks += [head | {"candidates": [{"content": {"role": "model", "parts": [piece]}}]} for piece in cut]
    last = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": reason, "index": 0}
    chunks[0]["usageMetadata"] = {"promptTokenCount": 1}
    chunks.append(head | {"candidates": [last], "usageMetadata": body["usageMetadata"]})
    return body, encode_events(chunks, named=False)


def _is_unsigned_text(part):
    return part.keys() <= {"text", "thought"}


STREAMS = {
    "anthropic": anthropic_streams(),
    "openai-chat": chat_streams(),
    "openai-responses": responses_streams(),
    "gemini": gemini_streams(),
}


@pytest.mark.parametrize("api", APIS)
@given(data=st.data())
def test_answer_stream_equals_the_answer_of_the_body(api, data):
    """The streamed answer equals the answer of the unstreamed body, and its history decodes to its message."""
    body, stream = data.draw(STREAMS[api])
    whole = parse_answer(api, json.dumps(body).encode())
    assert flatten_answer(accumulate(api, stream)) == flatten_answer(whole)
    if whole.history_elements and api != "openai-responses":
        assert DECODE[api](whole.history_elements[0]) == whole.message
    elif whole.history_elements:
        assert DECODE[api](b",".join(whole.history_elements)) == whole.message


@given(gemini_streams(), st.lists(st.integers(0, 3_000), max_size=5))
def test_json_array_reader_gives_the_same_answer_as_events(drawn, cuts):
    """Gemini's chunks in a JSON array, however chunked, give the same answer as server-sent events."""
    _, stream = drawn
    array = b"[" + b"\n,\r\n".join(event.data for event in SseReader().feed(stream)) + b"]"
    answer_stream, reader, start = AnswerStream("gemini"), JsonArrayReader(), 0
    for cut in [*sorted(cuts), len(array)]:
        for event in reader.feed(array[start:cut]):
            answer_stream.add_event(event)
        start = max(start, cut)
    assert flatten_answer(answer_stream.build_answer()) == flatten_answer(accumulate("gemini", stream))


@pytest.mark.parametrize("api", APIS)
@given(data=st.data())
def test_answer_stream_cut_before_its_end_is_not_complete(api, data):
    """Cut at any byte before the API's final event, an answer has what arrived so far and is not complete."""
    _, stream = data.draw(STREAMS[api])
    last = {"anthropic": b"message_stop", "openai-chat": b'"finish_reason"', "gemini": b'"finishReason"'}
    end = stream.rindex(last.get(api, b'"type": "response.'))
    answer = accumulate(api, stream[: data.draw(st.integers(0, end))])
    assert not answer.is_complete
    assert answer.error is None


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@st.composite
def malformed_strategy(draw, value, depth=0):
    """Draw ``value`` with any JSON in one place inside it."""
    if depth > 4 or draw(st.integers(0, 5)) == 0:
        return draw(ANY_JSON)
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        return value | {key: draw(malformed_strategy(value[key], depth + 1))}
    if isinstance(value, list) and value:
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(malformed_strategy(value[at], depth + 1)), *value[at + 1 :]]
    return draw(ANY_JSON)


@pytest.mark.parametrize("api", APIS)
@given(data=st.data())
def test_answer_stream_never_raises_on_malformed_events(api, data):
    """Any JSON in any place of an event, and events lost, doubled or out of order, give an answer and no exception."""
    body, stream = data.draw(STREAMS[api])
    found = [event for event in SseReader().feed(stream) if event.data.startswith(b"{")]
    chosen = data.draw(st.lists(st.sampled_from(found), max_size=6)) if found else []
    answer_stream = AnswerStream(api)
    for event in chosen:
        malformed = json.dumps(data.draw(malformed_strategy(json.loads(event.data)))).encode()
        answer_stream.add_event(StreamEvent(malformed, event.event))
    assert isinstance(answer_stream.build_answer().stop_reason, str)
    parse_answer(api, answer_stream.build_body())
    bad = json.dumps(data.draw(malformed_strategy(body))).encode()
    if bad.startswith(b"{"):
        assert isinstance(parse_answer(api, bad).stop_reason, str)


PADDED = {"openai-chat": {"id": "chatcmpl-1", "created": 1, "model": "kelp", "usage": None, "obfuscation": "x"}}


@pytest.mark.parametrize("api", APIS[:3])
@given(data=st.data())
def test_answer_stream_fast_path_equals_full_decoding(api, data):
    """Text events taken by the fast path give the same answer as full decoding, with malformed events in between."""
    _, stream = data.draw(STREAMS[api])
    quick, slow = AnswerStream(api), AnswerStream(api)
    slow._accumulator.add_text_delta = lambda _: None
    for event in SseReader().feed(stream):
        event_data = json.loads(event.data) if event.data.startswith(b"{") else event.data.decode()
        if isinstance(event_data, dict) and data.draw(st.booleans()):
            event_data = PADDED.get(api, {}) | event_data
        if data.draw(st.integers(0, 9)) == 0:
            event_data = data.draw(malformed_strategy(event_data))
        new_event = StreamEvent(
            event_data.encode() if isinstance(event_data, str) else json.dumps(event_data).encode(), event.event
        )
        assert quick.add_event(new_event) is slow.add_event(new_event)
    assert json.loads(quick.build_body()) == json.loads(slow.build_body())
    assert flatten_answer(quick.build_answer()) == flatten_answer(slow.build_answer())


def test_answer_stream_takes_the_head_of_the_newest_chunk():
    """The head of the newest chunk counts, also if a chunk in between needed full decoding."""
    answer_stream = AnswerStream("openai-chat")
    for model, unknown_field in (("a", {}), ("b", {"new": 1}), ("a", {})):
        chunk = {"model": model, "choices": [{"index": 0, "delta": {"content": model}}]} | unknown_field
        answer_stream.add_event(StreamEvent(json.dumps(chunk).encode()))
    assert (answer_stream.build_answer().model, answer_stream.build_answer().message.text) == ("a", "aba")


def test_answer_stream_keeps_summary_parts_of_responses_apart():
    """A delta belongs to the part with its index, in reasoning summaries too."""
    answer_stream = AnswerStream("openai-responses")
    for at, words in ((0, "one"), (1, "tw"), (1, "o")):
        delta = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": at}
        assert answer_stream.add_event(StreamEvent(json.dumps(delta | {"delta": words}).encode()))
    (item,) = json.loads(answer_stream.build_body())["output"]
    assert [part["text"] for part in item["summary"]] == ["one", "two"]


@given(st.sampled_from(APIS), st.binary(max_size=40) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_parse_answer_rejects_any_other_bytes_with_format_error(api, body):
    """A body that is no JSON object is a ``FormatError``; as the data of an event it changes nothing."""
    answer_stream = AnswerStream(api)
    answer_stream.add_event(StreamEvent(body))
    assert answer_stream.build_answer().message.role == "assistant"
    try:
        assert isinstance(parse_answer(api, body).stop_reason, str)
    except FormatError as error:
        assert "JSON object" in str(error)  # noqa: PT017
