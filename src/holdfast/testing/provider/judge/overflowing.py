"""How providers say that a request is larger than the window: one wording a name, with true numbers.

The words are those that servers send; the names are ours. ``Settings.overflow`` takes any of them, ``native`` (the
API's own) and ``silent`` (the front is dropped and the request answered).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.testing.provider.calls import Refusal


class Wording(Struct, frozen=True):
    """How one server says it: ``text`` holds names of numbers (see ``refuse``)."""

    status: int
    code: str
    text: str
    shape: str = "api"
    """``api`` is the error object of the API spoken; the others are servers that only resemble it."""
    in_stream: bool = False
    """Said inside a stream that began with 200, where one was asked for; without a code, with the API's own."""


NATIVE = {
    "anthropic": "anthropic",
    "openai-chat": "openai",
    "openai-responses": "responses",
    "gemini": "gemini",
}
"""The wording of each API's own provider."""
SUMS = {"anthropic": "anthropic-sum", "openai": "openai-sum", "azure": "openai-sum"}
"""What stands for a wording where the input fits and the output asked for does not, so that its numbers are true. The
others name the sum of both, or both."""

WORDINGS: Mapping[str, Wording] = {
    "anthropic": Wording(400, "invalid_request_error", "prompt is too long: {tokens} tokens > {limit} maximum"),
    "anthropic-sum": Wording(
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: {tokens} + {output} > {limit}, decrease input length or"
        " `max_tokens` and try again",
    ),
    "anthropic-bytes": Wording(413, "request_too_large", "Request exceeds the maximum allowed number of bytes."),
    "anthropic-tier": Wording(429, "rate_limit_error", "Extra usage is required for long context requests."),
    "openai": Wording(
        400,
        "context_length_exceeded",
        "This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens."
        " Please reduce the length of the messages.",
    ),
    "openai-sum": Wording(
        400,
        "context_length_exceeded",
        "This model's maximum context length is {limit} tokens, however you requested {total} tokens ({tokens} in your"
        " prompt; {output} for the completion). Please reduce your prompt; or completion length.",
    ),
    "openai-limit": Wording(
        400,
        "context_length_exceeded",
        "Input tokens exceed the configured limit of {limit} tokens. Your messages resulted in {tokens} tokens. Please"
        " reduce the length of the messages.",
    ),
    "openai-tpm": Wording(
        429,
        "rate_limit_exceeded",
        "Request too large for {model} in organization org-x on tokens per min (TPM): Limit {limit}, Requested"
        " {tokens}. The input or output tokens must be reduced in order to run successfully. Visit"
        " https://platform.openai.com/account/rate-limits to learn more.",
    ),
    "responses": Wording(
        400,
        "context_length_exceeded",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "responses-short": Wording(400, "context_length_exceeded", "Your input exceeds this model's context window."),
    "stream": Wording(
        400,
        "",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        in_stream=True,
    ),
    "gemini": Wording(
        400,
        "INVALID_ARGUMENT",
        "The input token count ({tokens}) exceeds the maximum number of tokens allowed ({limit}).",
    ),
    "gemini-short": Wording(
        400,
        "INVALID_ARGUMENT",
        "The input token count exceeds the maximum number of tokens allowed ({limit}).",
    ),
    "vertex": Wording(
        400, "INVALID_ARGUMENT", "The input exceeds the maximum number of tokens supported by this model."
    ),
    "azure": Wording(
        400,
        "context_length_exceeded",
        "This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens."
        " Please reduce the length of the messages.",
    ),
    "copilot": Wording(413, "", "failed to parse request", "flat"),
    "bedrock": Wording(
        400,
        "ValidationException",
        "The model returned the following errors: prompt is too long: {tokens} tokens > {limit} maximum",
        "flat",
    ),
    "bedrock-nova": Wording(
        400,
        "modelStreamError",
        "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum"
        " length. Please update the input to try again.",
        "flat",
        in_stream=True,
    ),
    "bedrock-llama": Wording(
        400,
        "ValidationException",
        "The model returned the following errors: This model's maximum context length is {limit} tokens. Please reduce"
        " the length of the prompt",
        "flat",
        in_stream=True,
    ),
    "bedrock-count": Wording(
        400,
        "ValidationException",
        "400 Bad Request: Too many input tokens. Max input tokens: {limit}, request input token count: {tokens}",
        "flat",
    ),
    "bedrock-titan": Wording(
        400,
        "ValidationException",
        "Malformed input request: expected maxLength: {most}, actual: {characters}, please reformat your input and try"
        " again.",
        "flat",
    ),
    "xai": Wording(400, "", "This model's maximum prompt length is {limit} but the request contains {tokens} tokens."),
    "groq": Wording(400, "context_length_exceeded", "Please reduce the length of the messages or completion."),
    "groq-bytes": Wording(413, "request_too_large", "Request Entity Too Large"),
    "openrouter": Wording(400, "", "Input length {tokens} exceeds the maximum allowed input length of {limit} tokens."),
    "together": Wording(
        422,
        "",
        "`inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {tokens} `inputs` tokens and {output}"
        " `max_new_tokens`",
    ),
    "tgi": Wording(
        422,
        "validation",
        "Input validation error: `inputs` must have less than {limit} tokens. Given: {tokens}",
        "tgi",
    ),
    "mistral": Wording(
        400,
        "3051",
        "Prompt contains {tokens} tokens and 0 draft tokens, too large for model with {limit} maximum context length",
        "mistral",
    ),
    "llama.cpp": Wording(
        400,
        "exceed_context_size_error",
        "request ({tokens} tokens) exceeds the available context size ({limit} tokens), try increasing it",
        "llama",
    ),
    "llama.cpp-old": Wording(500, "", "context size has been exceeded"),
    "ollama": Wording(400, "", "ollama error: context length exceeded, too many tokens"),
    "vllm": Wording(
        400,
        "BadRequestError",
        "You passed {tokens} input tokens and requested {output} output tokens. However, the model's context length is"
        " only {limit} tokens, resulting in a maximum input length of {room} tokens. Please reduce the length of the"
        " input prompt.",
        "vllm",
    ),
    "vllm-decoder": Wording(
        400,
        "BadRequestError",
        "The decoder prompt (length {tokens}) is longer than the maximum model length of {limit}. Make sure that"
        " `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
        "vllm",
    ),
    "sglang": Wording(
        400,
        "BadRequestError",
        "The input ({tokens} tokens) is longer than the model's context length ({limit} tokens).",
        "vllm",
    ),
    "deepinfra": Wording(400, "", "input length {tokens} exceeds the maximum context length of this model"),
    "litellm": Wording(
        400,
        "ContextWindowExceededError",
        "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: OpenAIException -"
        " Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total of"
        " {tokens} tokens.",
    ),
    "moonshot": Wording(
        400,
        "invalid_request_error",
        "Invalid request: Your request exceeded model token limit: {limit} (requested: {tokens})",
    ),
    "ds4": Wording(
        400, "", "Prompt has {tokens:,} tokens, but the configured context size is {limit:,} tokens", "flat"
    ),
    "zai": Wording(400, "1210", "tokens in request more than max tokens allowed"),
    "cohere": Wording(
        400,
        "",
        "too many tokens: total number of tokens in the prompt cannot exceed {limit} - received {tokens}. Try using a"
        " shorter prompt",
        "flat",
    ),
    "cohere-total": Wording(400, "", "total tokens ({tokens}) exceeds the model's maximum limit", "flat"),
    "ai21": Wording(422, "", "Prompt has too many tokens. Requested {tokens} tokens", "flat"),
    "replicate": Wording(400, "ModelError", "input is too long", "flat"),
    "watsonx": Wording(
        400,
        "invalid_input_argument",
        "Invalid input argument for Model '{model}': the number of input tokens {tokens} cannot exceed the total tokens"
        " limit {limit} for this model",
    ),
    "github-models": Wording(
        413, "tokens_limit_reached", "Request body too large for {model} model. Max size: {limit} tokens."
    ),
    "nginx": Wording(413, "", "413 Request Entity Too Large", "html"),
}
"""Every wording by its name."""
NAMES = ("native", "silent", *WORDINGS)
"""What ``Settings.overflow`` may be."""


_CHARACTERS = 4
"""Characters for a token, where a server counts those."""


class Measured(Struct, frozen=True):
    """The numbers of a request that is too large."""

    tokens: int
    """Of the input."""
    limit: int
    """Of the window."""
    output: int
    """Asked for."""
    model: str


def refuse(name: str, api: str, measured: Measured, *, stream: bool) -> Refusal:
    """Return the refusal in the wording ``name``, or the API's own. Raises ``ConfigError`` for a name nobody has."""
    said = NATIVE[api] if name == "native" else name
    found = WORDINGS.get(said if measured.tokens > measured.limit else SUMS.get(said, said))
    if found is None:
        raise ConfigError(f"no provider says an overflow as {name!r}; choose one of {', '.join(NAMES)}")
    if measured.tokens <= measured.limit and "{output}" not in found.text:  # one number for both
        measured = replace(measured, tokens=measured.tokens + measured.output, output=0)
    text = found.text.format(
        tokens=measured.tokens,
        limit=measured.limit,
        output=measured.output,
        total=measured.tokens + measured.output,
        room=max(0, measured.limit - measured.output),
        most=measured.limit * _CHARACTERS,
        characters=measured.tokens * _CHARACTERS,
        model=measured.model,
    )
    code = found.code or WORDINGS[NATIVE[api]].code if found.in_stream else found.code
    details: dict[str, str | int] = {"param": _PARAMS[api]} if code == "context_length_exceeded" else {}
    body = _body(found, text, measured)
    return Refusal(found.status, code, text, in_stream=found.in_stream and stream, body=body, details=details)


_PARAMS = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}


def nginx(title: str) -> bytes:
    """Return the page in which nginx tells an error."""
    head = f"<head><title>{title}</title></head>"
    return f"<html>{head}<body><center><h1>{title}</h1></center><hr><center>nginx</center></body></html>".encode()


def _body(found: Wording, text: str, measured: Measured) -> bytes:
    """Return the error body of a server that has its own, nothing for the API's usual one."""
    if found.shape == "html":
        return nginx(text)
    shapes: dict[str, object] = {
        "flat": {"message": text, "code": found.code},
        "vllm": {"object": "error", "message": text, "type": found.code, "param": None, "code": found.status},
        "mistral": {
            "object": "error",
            "message": text,
            "type": "invalid_request_invalid_args",
            "param": None,
            "code": found.code,
        },
        "tgi": {"error": text, "error_type": found.code},
        "llama": {
            "error": {
                "code": found.status,
                "message": text,
                "type": found.code,
                "n_prompt_tokens": measured.tokens,
                "n_ctx": measured.limit,
            }
        },
    }
    return msgspec.json.encode(shapes[found.shape]) if found.shape in shapes else b""
