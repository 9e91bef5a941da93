"""A second opinion: what our cases call valid fits the types of the providers' own libraries.

Through their JSON schemas, for the types themselves check nothing inside a field that is any iterable.
"""

from __future__ import annotations

import json
import re

import pytest
import rule_cases
from anthropic.types.beta.message_create_params import MessageCreateParams as Messages
from google.genai import types
from jsonschema import Draft202012Validator
from openai.types.chat.completion_create_params import CompletionCreateParams as Chat
from openai.types.responses.response_create_params import ResponseCreateParams as Responses
from pydantic import TypeAdapter

GEMINI = {
    "contents": types.Content,
    "systemInstruction": types.Content,
    "tools": types.Tool,
    "toolConfig": types.ToolConfig,
    "generationConfig": types.GenerationConfig,
}
"""The library has no type for a whole body of generateContent."""
_BIG = 100_000
"""Bytes from which on a case is too long for a schema."""


def kept(api):
    """Return the cases of an API that its rules take, the big ones left out."""
    small = [one for one in rule_cases.cases(api) if one["kept"] and len(one["request"]) < _BIG]
    return {one["id"]: json.loads(one["request"]) for one in small}


def checker(of):
    return Draft202012Validator(TypeAdapter(of).json_schema())


def camel(value):
    """Return a value of Gemini with its fields spelled in camel case; the API takes both, the schema one."""
    if isinstance(value, dict):
        return {re.sub("_([a-z])", lambda m: m[1].upper(), key): camel(inner) for key, inner in value.items()}
    return [camel(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("api", "of"), [("anthropic", Messages), ("openai-chat", Chat), ("openai-responses", Responses)]
)
def test_valid_rule_cases_fit_the_sdk_types(api, of):
    """A request that breaks no rule fits the SDK's types, once it has a model and a limit."""
    fits = checker(of)
    wrong = [id_ for id_, body in kept(api).items() if not fits.is_valid({"model": "m", "max_tokens": 9, **body})]
    assert wrong == []


def test_valid_gemini_rule_cases_fit_the_sdk_types():
    """Contents, system instruction, tools and options of a request that breaks no rule fit the SDK's types."""
    fits = {key: checker(of) for key, of in GEMINI.items()}
    for id_, body in kept("gemini").items():
        for key, value in camel(body).items():
            for one in value if isinstance(value, list) else [value]:
                assert key not in fits or fits[key].is_valid(one), f"{id_}: {key}"


def test_sdk_schemas_reject_invalid_requests():
    """An unknown role, and a part with no known field, fit no schema, so the check can fail."""
    said = {"model": "m", "max_tokens": 9, "messages": [{"role": "nobody", "content": "a"}]}
    assert not checker(Messages).is_valid(said)
    assert not checker(Chat).is_valid(said)
    assert not checker(Responses).is_valid({"model": "m", "input": [{"role": "nobody", "content": "a"}]})
    assert not checker(types.Content).is_valid({"parts": [{"words": "a"}]})
