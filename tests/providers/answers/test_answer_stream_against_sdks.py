"""Streams and bodies against the official SDKs: their types accept them and accumulate them to the same answer."""

from __future__ import annotations

import json

from anthropic.lib.streaming._beta_messages import accumulate_event
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from google.genai.types import GenerateContentResponse
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.common.sse import StreamEvent


def accumulate(api, bodies):
    fold = AnswerStream(api)
    for body in bodies:
        fold.add_event(StreamEvent(json.dumps(body).encode()))
    assert fold.is_complete
    return json.loads(fold.build_body()), fold.build_answer()


TOKENS = {"input_tokens": 9, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}
CLAUDE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": TOKENS,
}
PLACE = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None, "file_id": None}
CLAUDE_BLOCKS = [
    (
        {"type": "compaction", "content": None, "encrypted_content": None},
        [{"type": "compaction_delta", "content": "summary", "encrypted_content": "e"}],
    ),
    (
        {"type": "thinking", "thinking": "", "signature": ""},
        [{"type": "thinking_delta", "thinking": piece} for piece in ("let me ", "see")]
        + [{"type": "signature_delta", "signature": "c2ln"}],
    ),
    (
        {"type": "text", "text": "", "citations": None},
        [
            {"type": "text_delta", "text": "he"},
            {"type": "text_delta", "text": "llo"},
            {"type": "citations_delta", "citation": PLACE | {"start_char_index": 0, "end_char_index": 1}},
        ],
    ),
    (
        {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}},
        [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"path": "', '/tmp"}')],
    ),
]


def iter_anthropic_events():
    yield {"type": "message_start", "message": CLAUDE}
    for index, (block, deltas) in enumerate(CLAUDE_BLOCKS):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    usage = {"output_tokens": 70, "output_tokens_details": {"thinking_tokens": 20}}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def test_answer_stream_of_anthropic_matches_its_sdk():
    """The test events are valid for the SDK, and its accumulated message equals the body built here."""
    adapter, snapshot, buffers = TypeAdapter(BetaRawMessageStreamEvent), None, {}
    for body in iter_anthropic_events():
        event = adapter.validate_python(body)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers, request_headers=None)
    built_body, answer = accumulate("anthropic", iter_anthropic_events())
    BetaMessage.model_validate(built_body)
    sdk_body = snapshot.model_dump(mode="json", exclude_unset=True)
    assert built_body["content"] == sdk_body["content"]
    assert {"stop_reason": built_body["stop_reason"], "id": built_body["id"]} == {
        key: sdk_body[key] for key in ("stop_reason", "id")
    }
    assert built_body["usage"] == TOKENS | {"output_tokens": 70, "output_tokens_details": {"thinking_tokens": 20}}
    assert (answer.stop_reason, answer.usage.input, answer.usage.reasoning) == ("tool", 13, 20)


def iter_chat_chunks():
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}

    def chunk(delta, reason=None):
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}

    def call(index, **fields):
        return chunk({"tool_calls": [{"index": index} | fields]})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    yield chunk({"content": "on "})
    yield chunk({"content": "it"})
    for index, name in enumerate(("ls", "cat")):
        yield call(index, id=f"call_{index}", type="function", function={"name": name, "arguments": ""})
        yield call(index, function={"arguments": '{"a"'})
        yield call(index, function={"arguments": ": 1}"})
    yield chunk({}, "tool_calls")
    yield head | {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}}


def test_answer_stream_of_chat_matches_its_sdk():
    """The test chunks are valid for the SDK, and its accumulated completion says the same as the answer built here."""
    state = ChatCompletionStreamState()
    for body in iter_chat_chunks():
        state.handle_chunk(ChatCompletionChunk.model_validate(body))
    sdk_body = state.get_final_completion()
    built_body, answer = accumulate("openai-chat", iter_chat_chunks())
    sdk_message = sdk_body.choices[0].message
    calls = [(call.id, call.function.name, call.function.arguments) for call in sdk_message.tool_calls]
    assert [(call.id, call.name, call.arguments) for call in answer.message.calls] == calls
    assert (answer.message.text, answer.native_stop_reason) == (sdk_message.content, sdk_body.choices[0].finish_reason)
    assert built_body["usage"] == sdk_body.usage.model_dump(exclude_unset=True)
    assert parse_answer("openai-chat", sdk_body.model_dump_json().encode()).usage == answer.usage


def iter_responses_events():
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "half", "status": "in_progress"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "ls", "status": "in_progress"}
    started = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    done = [item | {"encrypted_content": "whole", "status": "completed"}]
    done += [call | {"arguments": '{"a": 1}', "status": "completed"}]
    yield {"type": "response.created", "response": started}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.output_item.done", "output_index": 0, "item": done[0]}
    yield {"type": "response.output_item.added", "output_index": 1, "item": call | {"arguments": ""}}
    delta = {"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "fc_1"}
    yield delta | {"delta": '{"a": 1}'}
    yield {"type": "response.output_item.done", "output_index": 1, "item": done[1]}
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 16,
    }
    ended = started | {"status": "completed", "output": done, "usage": usage}
    yield {"type": "response.completed", "response": ended}


def test_answer_stream_of_responses_is_valid_for_its_sdk():
    """The body built from the events is the response that the last event repeats."""
    adapter = TypeAdapter(ResponseStreamEvent)
    bodies = [body | {"sequence_number": number} for number, body in enumerate(iter_responses_events())]
    last = [adapter.validate_python(body) for body in bodies][-1]
    built_body, answer = accumulate("openai-responses", bodies)
    assert Response.model_validate(built_body) == last.response
    assert (answer.stop_reason, answer.usage.cache_read, answer.usage.reasoning) == ("tool", 4, 5)


def iter_gemini_chunks():
    def chunk(*parts, **fields):
        content = {"role": "model", "parts": list(parts)}
        return {"candidates": [{"content": content, "index": 0} | fields], "modelVersion": "gemini-3-pro"}

    yield chunk({"text": "hm", "thought": True})
    yield chunk({"text": "on "})
    yield chunk({"text": "it"})
    yield chunk({"functionCall": {"name": "ls", "args": {"a": 1}}, "thoughtSignature": "c2ln"}, finishReason="STOP")
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 3, "thoughtsTokenCount": 4, "totalTokenCount": 16}
    yield {"usageMetadata": usage, "responseId": "r"}


def test_answer_stream_of_gemini_is_valid_for_its_sdk():
    """The SDK reads the same text, calls and usage from the body built here."""
    for body in iter_gemini_chunks():
        GenerateContentResponse.model_validate(body)
    built_body, answer = accumulate("gemini", iter_gemini_chunks())
    sdk_body = GenerateContentResponse.model_validate(built_body)
    assert [part.text for part in sdk_body.parts] == ["hm", "on it", None]
    assert answer.message.text == "on it"
    assert [call.args for call in sdk_body.function_calls] == [json.loads(answer.message.calls[0].arguments)]
    assert (answer.usage.total, answer.usage.output) == (sdk_body.usage_metadata.total_token_count, 7)
