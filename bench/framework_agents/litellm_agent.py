"""LiteLLM, which leaves the loop to its caller: ``litellm.completion``, the calls of its answer, and again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

# It would ask the network for its table of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm.compression.retrieval_tool import build_retrieval_tool
from litellm.utils import trim_messages

from framework_agents.workload import ChildJob

RETRIEVAL_TOOL = "litellm_content_retrieve"
"""The tool with which ``litellm.compress`` lets a model read what it took away."""


def list_versions() -> str:
    """Return the versions of what was run."""
    return f"litellm {version('litellm')}, openai {version('openai')}"


def make_tool_definition(function: Callable[[str], str]) -> dict[str, Any]:
    """Return a tool of one argument as Chat Completions wants it."""
    parameters = {"type": "object", "properties": {"argument": {"type": "string"}}, "required": ["argument"]}
    return {
        "type": "function",
        "function": {"name": function.__name__, "description": function.__doc__, "parameters": parameters},
    }


class PlainLoop:
    """An agent whose application keeps the messages, and calls the model until it calls no tool."""

    def __init__(self, job: ChildJob, functions: dict[str, Callable[[str], str]]) -> None:
        self._functions = functions
        self._tools = [make_tool_definition(function) for function in functions.values()]
        self._model = f"openai/{job.model}"
        self._window = job.window
        self._options: dict[str, Any] = {
            "api_base": f"{job.url}/v1",
            "api_key": "any",
            "reasoning_effort": "none",
            "num_retries": 0,
        }
        self._messages: list[Any] = [
            {"role": "system", "content": "You look after a large service. Follow every rule of the user."}
        ]

    def say(self, prompt: str) -> None:
        """Let the agent work."""
        self._messages.append({"role": "user", "content": prompt})
        while True:
            answer = self._ask()
            self._messages.append(answer.model_dump(exclude_none=True))
            for call in answer.tool_calls or ():
                self._messages.append(self._answer_call(call))
            if not answer.tool_calls:
                return

    def _ask(self) -> Any:
        """Return the model's answer to the messages."""
        return self._complete(litellm.completion, self._messages, self._tools)

    def _complete(self, completion: Callable[..., Any], messages: list[Any], tools: list[Any]) -> Any:
        response = completion(model=self._model, messages=messages, tools=tools, **self._options)
        return response.choices[0].message

    def _answer_call(self, call: Any) -> dict[str, Any]:
        """Return the message with the result of a call."""
        argument = json.loads(call.function.arguments)["argument"]
        return {"role": "tool", "tool_call_id": call.id, "content": self._functions[call.function.name](argument)}


class TrimmingLoop(PlainLoop):
    """Sends what ``trim_messages`` leaves of its messages: half of the window."""

    def _ask(self) -> Any:
        messages = trim_messages(self._messages, model=self._model, max_tokens=self._window // 2)
        return self._complete(litellm.completion, messages, self._tools)


class CompressingLoop(PlainLoop):
    """Goes on with what ``litellm.compress`` leaves: a quarter of the window when three quarters are full.

    To compress the whole history for each call would take seconds a call, and break the prompt cache each time.
    """

    def __init__(self, job: ChildJob, functions: dict[str, Callable[[str], str]]) -> None:
        super().__init__(job, functions)
        self._stored_texts: dict[str, str] = {}

    def _ask(self) -> Any:
        compressed = litellm.compress(
            self._messages,
            model=self._model,
            compression_trigger=self._window * 3 // 4,
            compression_target=self._window // 4,
        )
        self._messages = compressed["messages"]
        # What was stored first is the whole text; later it may be what was left of it.
        self._stored_texts = {**compressed["cache"], **self._stored_texts}
        tools = list(self._tools)
        if self._stored_texts:
            tools.append(build_retrieval_tool(list(self._stored_texts)))
        return self._complete(litellm.completion, self._messages, tools)

    def _answer_call(self, call: Any) -> dict[str, Any]:
        if call.function.name != RETRIEVAL_TOOL:
            return super()._answer_call(call)
        text = self._stored_texts[json.loads(call.function.arguments)["key"]]
        return {"role": "tool", "tool_call_id": call.id, "content": text}


class HoldfastLoop(PlainLoop):
    """Calls the model through ``HoldfastClient``."""

    def __init__(self, job: ChildJob, functions: dict[str, Callable[[str], str]]) -> None:
        from holdfast.integrations.litellm import HoldfastClient

        super().__init__(job, functions)
        self._client = HoldfastClient(window=job.window, store=f"{job.folder}/holdfast.db")
        self._tools.append(self._client.recall_tool)
        self._options["litellm_session_id"] = "bench"
        self._asked_messages: list[Any] = []

    def _ask(self) -> Any:
        self._asked_messages = list(self._messages)
        return self._complete(self._client.completion, self._messages, self._tools)

    def _answer_call(self, call: Any) -> dict[str, Any]:
        if call.function.name == self._client.recall_tool["function"]["name"]:
            return self._client.answer_recall(call, self._asked_messages, **self._options)
        return super()._answer_call(call)


def build_agent(job: ChildJob, tools: dict[str, Callable[[str], str]]) -> PlainLoop:
    """Build the agent of a row."""
    loops = {"none": PlainLoop, "trim": TrimmingLoop, "compress": CompressingLoop, "holdfast": HoldfastLoop}
    return loops[job.remedy](job, tools)
