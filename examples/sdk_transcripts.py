"""The official SDKs as clients of the strict provider: an answer, a stream, a tool call and an overflow of each.

    uv run python examples/sdk_transcripts.py

Nothing leaves this machine: the provider listens on loopback, with a window of 2,000 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import anthropic
import openai
from google import genai
from google.genai import errors, types

from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider
from holdfast.testing.provider.settings import ProviderSettings

HELLO = "hello"
CALL = 'call read {"path": "notes/kelp.md"}'
"""A user's line that makes the provider call a tool."""
RESULT = "Kelp holds on to rock."
HUGE = "kelp " * 3_000
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def say(step: str, *lines: object) -> None:
    """Print the results of a step."""
    for number, line in enumerate(lines):
        print(f"  {'' if number else step:9} {line}")


def refused(ask: Callable[[], object], kind: type[Exception]) -> str:
    """Call ``ask`` and return the SDK's own error that it raises."""
    try:
        ask()
    except kind as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"
    return "no error, which is wrong"


# -- Anthropic ---------------------------------------------------------------------------------------------------------


def anthropic_transcript(url: str) -> None:
    """Talk through ``anthropic``."""
    model = "claude-opus-5-5"
    tool = {"name": "read", "description": "Read a file.", "input_schema": SCHEMA}
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:

        def ask(*messages: dict[str, Any], **more: Any) -> Any:
            return client.messages.create(model=model, max_tokens=200, messages=messages, **more)

        plain = ask(user(HELLO))
        say("plain", plain.content[0].text, f"stop_reason {plain.stop_reason}, {plain.usage.input_tokens} tokens in")
        thinking = {"type": "adaptive"}
        with client.messages.stream(model=model, max_tokens=200, messages=[user(HELLO)], thinking=thinking) as stream:
            say("stream", " ".join(event.type for event in stream))
            say("", [(block.type, getattr(block, "text", "…")) for block in stream.get_final_message().content])
        asked = ask(user(CALL), tools=[tool])
        call = asked.content[0]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
        back = ask(user(CALL), {"role": "assistant", "content": asked.content}, user([result]), tools=[tool])
        say("tools", f"{call.name} {call.input}", back.content[0].text)
        say("overflow", refused(lambda: ask(user(HUGE)), anthropic.BadRequestError))
        say("count", client.messages.count_tokens(model=model, messages=[user(HELLO)]))


def user(content: Any) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": content}


# -- OpenAI ------------------------------------------------------------------------------------------------------------


def chat_transcript(url: str) -> None:
    """Talk through ``openai``, Chat Completions."""
    model = "gpt-5.6-sol"
    tool = {"type": "function", "function": {"name": "read", "parameters": SCHEMA}}
    # This model takes tools in Chat Completions only without reasoning.
    tools: dict[str, Any] = {"tools": [tool], "reasoning_effort": "none"}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:

        def ask(*messages: Any, **more: Any) -> Any:
            return client.chat.completions.create(model=model, messages=messages, **more)

        plain = ask(user(HELLO))
        stop = plain.choices[0].finish_reason
        say("plain", plain.choices[0].message.content, f"finish_reason {stop}, {plain.usage.prompt_tokens} tokens in")
        chunks = list(ask(user(HELLO), stream=True, stream_options={"include_usage": True}))
        said = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        say("stream", f"{len(chunks)} chunks: {said}", f"usage in the last: {chunks[-1].usage.prompt_tokens} tokens in")
        asked = ask(user(CALL), **tools).choices[0].message
        call = asked.tool_calls[0]
        result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
        back = ask(user(CALL), asked, result, **tools)
        say("tools", f"{call.function.name} {call.function.arguments}", back.choices[0].message.content)
        say("overflow", refused(lambda: ask(user(HUGE)), openai.BadRequestError))
        say("count", "Chat Completions has no endpoint for it")


def responses_transcript(url: str) -> None:
    """Talk through ``openai``, Responses."""
    model = "gpt-5.6-sol"
    tool = {"type": "function", "name": "read", "parameters": SCHEMA, "strict": False}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:

        def ask(sent: Any, **more: Any) -> Any:
            return client.responses.create(model=model, input=sent, **more)

        plain = ask(HELLO)
        say("plain", plain.output_text, f"status {plain.status}, {plain.usage.input_tokens} tokens in")
        with client.responses.stream(model=model, input=HELLO, reasoning={"effort": "low"}) as stream:
            say("stream", " ".join(event.type.removeprefix("response.") for event in stream))
            say("", [item.type for item in stream.get_final_response().output])
        asked = ask(CALL, tools=[tool])
        call = next(item for item in asked.output if item.type == "function_call")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        back = ask([user(CALL), *asked.output, result], tools=[tool])
        say("tools", f"{call.name} {call.arguments}", back.output_text)
        say("overflow", refused(lambda: ask(HUGE), openai.BadRequestError))
        say("count", client.responses.input_tokens.count(model=model, input=HELLO))
        compacted = client.responses.compact(model=model, input=[user(HELLO), user("Kelp.")])
        say("compact", [item.type for item in compacted.output])


# -- Google ------------------------------------------------------------------------------------------------------------


def gemini_transcript(url: str) -> None:
    """Talk through ``google-genai``."""
    model = "gemini-3-pro"
    declared = types.FunctionDeclaration(name="read", description="Read.", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[declared])])
    with genai.Client(api_key="any", http_options=types.HttpOptions(base_url=url)) as client:

        def ask(contents: Any, **more: Any) -> Any:
            return client.models.generate_content(model=model, contents=contents, **more)

        plain = ask(HELLO)
        stop = plain.candidates[0].finish_reason.value
        tokens = plain.usage_metadata.prompt_token_count
        say("plain", plain.text, f"finishReason {stop}, {tokens} tokens in")
        chunks = list(client.models.generate_content_stream(model=model, contents=HELLO))
        say("stream", f"{len(chunks)} chunks: {[chunk.text for chunk in chunks]}")
        asked = ask(CALL, config=config)
        call = asked.function_calls[0]
        result = types.Part.from_function_response(name=call.name, response={"output": RESULT})
        result.function_response.id = call.id
        spoken = types.Content(role="user", parts=[types.Part(text=CALL)])
        given = types.Content(role="user", parts=[result])
        back = ask([spoken, asked.candidates[0].content, given], config=config)
        say("tools", f"{call.name} {call.args}", back.text)
        say("overflow", refused(lambda: ask(HUGE), errors.ClientError))
        say("count", client.models.count_tokens(model=model, contents=HELLO).total_tokens)


TRANSCRIPTS: Sequence[tuple[str, str, Callable[[str], None]]] = (
    ("anthropic", "Messages", anthropic_transcript),
    ("openai", "Chat Completions", chat_transcript),
    ("openai", "Responses", responses_transcript),
    ("google-genai", "generateContent", gemini_transcript),
)
"""Each SDK with its API."""


def main() -> None:
    """Print a transcript of each SDK, each with its own provider."""
    for name, api, talk in TRANSCRIPTS:
        print(f"{name} {version(name)}, {api}")
        with serve_provider(Provider(ProviderSettings(window=2_000))) as url:
            talk(url)
        print()


if __name__ == "__main__":
    main()
