"""Every call of a library that a proxy may see, once: ``python library_calls.py LIBRARY URL``, where the library is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

SHAPE = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read", "description": "Read a file.", "parameters": SHAPE}
GREETING = [{"role": "user", "content": "hello"}]


def anthropic(url: str) -> list[Callable]:
    """Return the calls of anthropic's library."""
    client = import_module("anthropic").Anthropic(base_url=url, api_key="k", max_retries=0)
    about = {"model": "claude-sonnet-4-5", "messages": GREETING}
    whole = about | {"max_tokens": 64}
    tools = [{"name": "read", "description": "Read a file.", "input_schema": SHAPE}]
    thinking = {"type": "enabled", "budget_tokens": 1_024}

    def stream_message() -> None:
        with client.messages.stream(**whole) as events:
            events.get_final_message()

    return [
        lambda: client.messages.create(**whole),
        lambda: client.messages.create(**whole, system="Be short.", tools=tools, metadata={"user_id": "u1"}),
        lambda: client.messages.create(**(whole | {"max_tokens": 2_048}), thinking=thinking),
        lambda: list(client.messages.create(**whole, stream=True)),
        stream_message,
        lambda: client.messages.count_tokens(**about),
        lambda: client.beta.messages.create(
            **whole, betas=["context-management-2025-06-27"], context_management={"edits": []}
        ),
        client.models.list,
    ]


def openai(url: str) -> list[Callable]:
    """Return the calls of openai's library."""
    library = import_module("openai")
    client = library.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    chat = {"model": "gpt-5-mini", "messages": GREETING}
    ask = {"model": "gpt-5-mini", "input": "hello"}
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {**SHAPE, "additionalProperties": False}},
    }

    def stream_completion() -> None:
        with client.chat.completions.stream(**chat) as events:
            events.get_final_completion()

    def stream_response() -> None:
        with client.responses.stream(**ask) as events:
            events.get_final_response()

    def continue_response() -> None:
        first_response = client.responses.create(**ask, store=True)
        client.responses.create(**(ask | {"input": "again"}), previous_response_id=first_response.id)

    return [
        lambda: client.chat.completions.create(**chat),
        lambda: client.chat.completions.create(**chat, tools=[{"type": "function", "function": FUNCTION}]),
        lambda: client.chat.completions.create(**chat, response_format=schema),
        lambda: list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})),
        stream_completion,
        lambda: client.responses.create(**ask),
        lambda: client.responses.create(
            **ask, store=False, include=["reasoning.encrypted_content"], reasoning={"effort": "low"}
        ),
        lambda: client.responses.create(**ask, tools=[{"type": "function", **FUNCTION}], instructions="Be short."),
        lambda: list(client.responses.create(**ask, stream=True, prompt_cache_key="c1", safety_identifier="u1")),
        stream_response,
        continue_response,
        lambda: client.responses.compact(model="gpt-5-mini", input=GREETING),
        lambda: client.responses.input_tokens.count(**ask),
        client.models.list,
        lambda: client.models.retrieve("gpt-5-mini"),
    ]


def google(url: str) -> list[Callable]:
    """Return the calls of google-genai."""
    genai = import_module("google.genai")
    client = genai.Client(api_key="k", http_options={"base_url": url})
    model = {"model": "gemini-2.5-flash"}
    tool = {"function_declarations": [{"name": "read", "description": "Read a file.", "parameters_json_schema": SHAPE}]}
    config = {"tools": [tool], "system_instruction": "Be short.", "temperature": 0, "max_output_tokens": 64}
    thoughts = {"thinking_config": {"include_thoughts": True, "thinking_budget": 128}}

    def chat_twice() -> None:
        chat = client.chats.create(**model)
        chat.send_message("hello")
        list(chat.send_message_stream("again"))

    return [
        lambda: client.models.generate_content(**model, contents="hello"),
        lambda: client.models.generate_content(**model, contents="hello", config=config),
        lambda: client.models.generate_content(**model, contents="hello", config=thoughts),
        lambda: list(client.models.generate_content_stream(**model, contents="hello")),
        chat_twice,
        lambda: client.models.count_tokens(**model, contents="hello"),
        lambda: client.models.get(**model),
        lambda: list(client.models.list()),
    ]


CALLS = {"anthropic": anthropic, "openai": openai, "google-genai": google}


def main(library: str, url: str) -> None:
    """Make each call; a refused request has been sent all the same."""
    for call in CALLS[library](url):
        try:
            call()
        except Exception as error:  # noqa: BLE001  whatever a library raises is reported
            sys.stderr.write(f"{library}: {type(error).__name__}: {error}"[:300] + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
