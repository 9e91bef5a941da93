"""One conversation through one library: ``python library_conversation.py LIBRARY URL``, where the library is installed.

Each line of standard input is a user's text as JSON; it is answered by a line ``{"text", "error"}`` once the library
has run all calls of the model. Whole answers and streams take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

TOOL = "run"
ABOUT = "Run a command of the shell."
SHAPE = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": TOOL, "description": ABOUT, "parameters": SHAPE}
MODEL, CLAUDE, GEMINI = "fake-1", "claude-sonnet-4-5", "gemini-2.5-flash"
MAX_TOKENS = 512
"""Tokens of an answer."""
Say = Callable[[str, bool], str]
"""Takes a user's text and whether to stream; returns the model's last text."""


def run(command: str) -> str:
    """Return the output of a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout


# -- anthropic ---------------------------------------------------------------------------------------------------------


def anthropic(url: str) -> Say:
    """Return a conversation through anthropic's own library."""
    from anthropic import Anthropic

    client, messages = Anthropic(base_url=url, api_key="k"), []
    tools = [{"name": TOOL, "description": ABOUT, "input_schema": SHAPE}]

    def request_answer(stream: bool):
        about = {
            "model": CLAUDE,
            "max_tokens": MAX_TOKENS,
            "messages": messages,
            "tools": tools,
            "system": "You run commands.",
        }
        if not stream:
            return client.messages.create(**about)
        with client.messages.stream(**about) as events:
            return events.get_final_message()

    def say(text: str, stream: bool) -> str:
        messages.append({"role": "user", "content": text})
        while True:
            answer = request_answer(stream)
            messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in answer.content if block.type == "text")
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": run(**call.input)} for call in calls]
            messages.append({"role": "user", "content": results})

    return say


# -- openai ------------------------------------------------------------------------------------------------------------


def openai_chat(url: str) -> Say:
    """Return a conversation through openai's library, over Chat Completions."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="k")
    return chat_with(lambda **about: client.chat.completions.create(model=MODEL, **about))


def chat_with(create: Callable) -> Say:
    """Return a conversation over Chat Completions, where ``create`` makes one request."""
    messages: list = [{"role": "system", "content": "You run commands."}]
    tools = [{"type": "function", "function": FUNCTION}]

    def say(text: str, stream: bool) -> str:
        messages.append({"role": "user", "content": text})
        while True:
            answer = create(messages=messages, tools=tools, stream=stream)
            message = join_chunks(answer) if stream else answer.choices[0].message.model_dump(exclude_none=True)
            messages.append({key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)})
            if not message.get("tool_calls"):
                return message.get("content") or ""
            for call in message["tool_calls"]:
                result = run(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return say


def join_chunks(chunks) -> dict:
    """Return the message that the chunks of a stream make."""
    text, calls = "", {}
    for delta in (chunk.choices[0].delta for chunk in chunks if chunk.choices):
        text += delta.content or ""
        for piece in delta.tool_calls or ():
            call = calls.setdefault(
                piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            )
            call["id"] += piece.id or ""
            call["function"]["name"] += piece.function.name or ""
            call["function"]["arguments"] += piece.function.arguments or ""
    return {"role": "assistant", "content": text, "tool_calls": [calls[at] for at in sorted(calls)]}


def openai_responses(url: str) -> Say:
    """Return a conversation through openai's library, over Responses, that keeps its history itself."""
    from openai import OpenAI

    client, items = OpenAI(base_url=f"{url}/v1", api_key="k"), []
    about = {
        "model": MODEL,
        "store": False,
        "instructions": "You run commands.",
        "tools": [{"type": "function", **FUNCTION}],
    }

    def request_answer(stream: bool):
        if not stream:
            return client.responses.create(input=items, **about)
        with client.responses.stream(input=items, **about) as events:
            return events.get_final_response()

    def say(text: str, stream: bool) -> str:
        items.append({"role": "user", "content": text})
        while True:
            answer = request_answer(stream)
            if answer.error:
                raise RuntimeError(answer.error.message)
            items.extend(item.to_dict(exclude_none=True) for item in answer.output)
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return answer.output_text
            for call in calls:
                result = run(**json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})

    return say


# -- google-genai ------------------------------------------------------------------------------------------------------


def google(url: str) -> Say:
    """Return a conversation through google-genai, which keeps its history in a chat."""
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="k", http_options={"base_url": url})
    tool = types.Tool(function_declarations=[{"name": TOOL, "description": ABOUT, "parameters_json_schema": SHAPE}])
    chat = client.chats.create(model=GEMINI, config={"tools": [tool], "system_instruction": "You run commands."})

    def parts(message, stream: bool) -> list:
        answers = chat.send_message_stream(message) if stream else [chat.send_message(message)]
        contents = [answer.candidates[0].content for answer in answers if answer.candidates]
        return [part for content in contents if content for part in content.parts or ()]

    def say(text: str, stream: bool, client=client) -> str:
        """Send a text; the default argument keeps the client alive, which otherwise closes itself."""
        answer_parts = parts(text, stream)
        while calls := [part.function_call for part in answer_parts if part.function_call]:
            results = [(call.name, {"output": run(**call.args)}) for call in calls]
            answer_parts = parts(
                [types.Part.from_function_response(name=name, response=output) for name, output in results], stream
            )
        return "".join(part.text or "" for part in answer_parts)

    return say


# -- LiteLLM -----------------------------------------------------------------------------------------------------------


def litellm(model: str, base: str) -> Callable[[str], Say]:
    """Return a function that begins a conversation with ``model`` through LiteLLM."""

    def begin(url: str) -> Say:
        from litellm import completion

        return chat_with(
            lambda **about: completion(
                model=model, api_base=f"{url}{base}", api_key="k", max_tokens=MAX_TOKENS, **about
            )
        )

    return begin


# -- LangChain ---------------------------------------------------------------------------------------------------------


def langchain_openai(url: str) -> Say:
    """Return a conversation through LangChain with a model of OpenAI's."""
    from langchain_openai import ChatOpenAI

    return chat_with_langchain(ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="k"))


def langchain_anthropic(url: str) -> Say:
    """Return a conversation through LangChain with a model of Anthropic's."""
    from langchain_anthropic import ChatAnthropic

    return chat_with_langchain(ChatAnthropic(model=CLAUDE, base_url=url, api_key="k", max_tokens=MAX_TOKENS))


def chat_with_langchain(model) -> Say:
    """Return a conversation with a chat model of LangChain's."""
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

    bound = model.bind_tools([{"type": "function", "function": FUNCTION}])
    messages: list = [SystemMessage("You run commands.")]

    def request_answer(stream: bool):
        if not stream:
            return bound.invoke(messages)
        whole = None
        for chunk in bound.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    def say(text: str, stream: bool) -> str:
        messages.append(HumanMessage(text))
        while True:
            messages.append(request_answer(stream))
            if not messages[-1].tool_calls:
                return messages[-1].text
            results = [ToolMessage(run(**call["args"]), tool_call_id=call["id"]) for call in messages[-1].tool_calls]
            messages.extend(results)

    return say


LIBRARIES: dict[str, Callable[[str], Say]] = {
    "anthropic": anthropic,
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "google-genai": google,
    "litellm-openai": litellm(f"openai/{MODEL}", "/v1"),
    "litellm-anthropic": litellm(f"anthropic/{CLAUDE}", ""),
    "litellm-gemini": litellm(f"gemini/{GEMINI}", ""),
    "langchain-openai": langchain_openai,
    "langchain-anthropic": langchain_anthropic,
}


def main(library: str, url: str) -> None:
    """Answer each line of standard input."""
    say = LIBRARIES[library](url)
    for number, line in enumerate(sys.stdin):
        try:
            answer = {"text": say(json.loads(line), number % 2 == 1), "error": ""}
        except Exception as error:  # noqa: BLE001  whatever a library raises is what reached its user
            answer = {"text": "", "error": f"{type(error).__name__}: {error}"[:500]}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
