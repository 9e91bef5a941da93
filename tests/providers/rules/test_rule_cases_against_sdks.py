"""A second opinion: the valid rule cases fit the types of the providers' SDKs.

The check uses the types' JSON schemas, because the types themselves accept anything inside an iterable field.
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
"""The types of each field; the SDK has no type for a whole body of generateContent."""
_BIG = 100_000
"""Cases of this many bytes or more are too long for a schema."""


def load_kept_cases(api):
    """Return the valid cases of an API by id, without the large ones."""
    small = [case for case in rule_cases.load_cases(api) if case["kept"] and len(case["request"]) < _BIG]
    return {case["id"]: json.loads(case["request"]) for case in small}


def build_schema_validator(of):
    return Draft202012Validator(TypeAdapter(of).json_schema())


def convert_to_camel_case(value):
    """Return a Gemini value with fields in camel case; the API accepts both spellings, the schema only this one."""
    if isinstance(value, dict):
        return {
            re.sub("_([a-z])", lambda m: m[1].upper(), key): convert_to_camel_case(inner)
            for key, inner in value.items()
        }
    return [convert_to_camel_case(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("api", "of"), [("anthropic", Messages), ("openai-chat", Chat), ("openai-responses", Responses)]
)
def test_valid_rule_cases_fit_the_sdk_types(api, of):
    """A request that breaks no rule fits the SDK's types, once it has a model and a limit."""
    fits = build_schema_validator(of)
    wrong = [
        id_ for id_, body in load_kept_cases(api).items() if not fits.is_valid({"model": "m", "max_tokens": 9, **body})
    ]
    assert wrong == []


def test_valid_gemini_rule_cases_fit_the_sdk_types():
    """Contents, system instruction, tools and options of a request that breaks no rule fit the SDK's types."""
    fits = {key: build_schema_validator(of) for key, of in GEMINI.items()}
    for id_, body in load_kept_cases("gemini").items():
        for key, value in convert_to_camel_case(body).items():
            for element in value if isinstance(value, list) else [value]:
                assert key not in fits or fits[key].is_valid(element), f"{id_}: {key}"


def test_sdk_schemas_reject_invalid_requests():
    """An unknown role, and a part with no known field, fit no schema, so the check can fail."""
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "nobody", "content": "a"}]}
    assert not build_schema_validator(Messages).is_valid(body)
    assert not build_schema_validator(Chat).is_valid(body)
    assert not build_schema_validator(Responses).is_valid({"model": "m", "input": [{"role": "nobody", "content": "a"}]})
    assert not build_schema_validator(types.Content).is_valid({"parts": [{"words": "a"}]})
