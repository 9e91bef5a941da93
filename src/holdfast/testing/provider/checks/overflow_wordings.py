"""Wordings in which servers refuse a request that is larger than the window, filled in with the true numbers.

The texts are those of real servers; the names are ours. ``ProviderSettings.overflow`` takes any of the names, and also
``native`` (the API's own wording) and ``silent`` (the front is dropped and the request answered).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.testing.provider.calls import RefusalReply


class OverflowWording(Struct, frozen=True):
    """The wording of one server."""

    status: int
    code: str
    """The code in the error; empty for none, or for the API's own if ``in_stream``."""
    text: str
    """The message, with the placeholders that ``make_overflow_refusal`` fills in."""
    shape: str = "api"
    """``api`` for the API's own error object; the others are those of servers that only resemble the API."""
    in_stream: bool = False
    """Whether a streaming request gets the error inside a stream with HTTP 200."""


NATIVE_WORDINGS = {
    "anthropic": "anthropic",
    "openai-chat": "openai",
    "openai-responses": "responses",
    "gemini": "gemini",
}
"""The wording of the provider of each API."""
SUM_WORDINGS = {"anthropic": "anthropic-sum", "openai": "openai-sum", "azure": "openai-sum"}
"""The wordings to use instead if the input fits and only the requested output does not.

They name both numbers, so that the numbers stay true. Wordings that are not here have the sum, or both, already.
"""

OVERFLOW_WORDINGS: Mapping[str, OverflowWording] = {
    "anthropic": OverflowWording(400, "invalid_request_error", "prompt is too long: {tokens} tokens > {limit} maximum"),
    "anthropic-sum": OverflowWording(
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: {tokens} + {output} > {limit}, decrease input length or"
        " `max_tokens` and try again",
    ),
    "anthropic-bytes": OverflowWording(
        413,
        "request_too_large",
        "Request exceeds the maximum allowed number of bytes.",
    ),
    # An overflow only if the prompt is long: accounts without extra usage get it for any request to these models.
    "anthropic-tier": OverflowWording(429, "rate_limit_error", "Extra usage is required for long context requests."),
    "openai": OverflowWording(
        400,
        "context_length_exceeded",
        "This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens."
        " Please reduce the length of the messages.",
    ),
    "openai-sum": OverflowWording(
        400,
        "context_length_exceeded",
        "This model's maximum context length is {limit} tokens, however you requested {total} tokens ({tokens} in your"
        " prompt; {output} for the completion). Please reduce your prompt; or completion length.",
    ),
    "openai-limit": OverflowWording(
        400,
        "context_length_exceeded",
        "Input tokens exceed the configured limit of {limit} tokens. Your messages resulted in {tokens} tokens. Please"
        " reduce the length of the messages.",
    ),
    # A single request over the tokens of a minute: a rate limit by its status, and never cured by waiting.
    "openai-tpm": OverflowWording(
        429,
        "rate_limit_exceeded",
        "Request too large for {model} in organization org-x on tokens per min (TPM): Limit {limit}, Requested"
        " {tokens}. The input or output tokens must be reduced in order to run successfully. Visit"
        " https://platform.openai.com/account/rate-limits to learn more.",
    ),
    "responses": OverflowWording(
        400,
        "context_length_exceeded",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "responses-short": OverflowWording(
        400,
        "context_length_exceeded",
        "Your input exceeds this model's context window.",
    ),
    "stream": OverflowWording(
        400,
        "",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        in_stream=True,
    ),
    "gemini": OverflowWording(
        400,
        "INVALID_ARGUMENT",
        "The input token count ({tokens}) exceeds the maximum number of tokens allowed ({limit}).",
    ),
    "gemini-short": OverflowWording(
        400,
        "INVALID_ARGUMENT",
        "The input token count exceeds the maximum number of tokens allowed ({limit}).",
    ),
    # Without a number, so the limit cannot be learned from it.
    "vertex": OverflowWording(
        400,
        "INVALID_ARGUMENT",
        "The input exceeds the maximum number of tokens supported by this model.",
    ),
    "azure": OverflowWording(
        400,
        "context_length_exceeded",
        "This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens."
        " Please reduce the length of the messages.",
    ),
    # GitHub Copilot says nothing about size but the status.
    "copilot": OverflowWording(413, "", "failed to parse request", "flat"),
    "bedrock": OverflowWording(
        400,
        "ValidationException",
        "The model returned the following errors: prompt is too long: {tokens} tokens > {limit} maximum",
        "flat",
    ),
    # Bedrock reports overflows of these models inside of a stream with HTTP 200.
    "bedrock-nova": OverflowWording(
        400,
        "modelStreamError",
        "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum"
        " length. Please update the input to try again.",
        "flat",
        in_stream=True,
    ),
    "bedrock-llama": OverflowWording(
        400,
        "ValidationException",
        "The model returned the following errors: This model's maximum context length is {limit} tokens. Please reduce"
        " the length of the prompt",
        "flat",
        in_stream=True,
    ),
    "bedrock-count": OverflowWording(
        400,
        "ValidationException",
        "400 Bad Request: Too many input tokens. Max input tokens: {limit}, request input token count: {tokens}",
        "flat",
    ),
    # Titan counts characters, and its numbers must not be taken for tokens.
    "bedrock-titan": OverflowWording(
        400,
        "ValidationException",
        "Malformed input request: expected maxLength: {most}, actual: {characters}, please reformat your input and try"
        " again.",
        "flat",
    ),
    "xai": OverflowWording(
        400,
        "",
        "This model's maximum prompt length is {limit} but the request contains {tokens} tokens.",
    ),
    "groq": OverflowWording(400, "context_length_exceeded", "Please reduce the length of the messages or completion."),
    # The same words as a proxy's limit on bytes.
    "groq-bytes": OverflowWording(413, "request_too_large", "Request Entity Too Large"),
    "openrouter": OverflowWording(
        400,
        "",
        "Input length {tokens} exceeds the maximum allowed input length of {limit} tokens.",
    ),
    "together": OverflowWording(
        422,
        "",
        "`inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {tokens} `inputs` tokens and {output}"
        " `max_new_tokens`",
    ),
    "tgi": OverflowWording(
        422,
        "validation",
        "Input validation error: `inputs` must have less than {limit} tokens. Given: {tokens}",
        "tgi",
    ),
    "mistral": OverflowWording(
        400,
        "3051",
        "Prompt contains {tokens} tokens and 0 draft tokens, too large for model with {limit} maximum context length",
        "mistral",
    ),
    "llama.cpp": OverflowWording(
        400,
        "exceed_context_size_error",
        "request ({tokens} tokens) exceeds the available context size ({limit} tokens), try increasing it",
        "llama",
    ),
    # Early versions had HTTP 500 for it, which clients retry.
    "llama.cpp-old": OverflowWording(500, "", "context size has been exceeded"),
    "ollama": OverflowWording(400, "", "ollama error: context length exceeded, too many tokens"),
    "vllm": OverflowWording(
        400,
        "BadRequestError",
        "You passed {tokens} input tokens and requested {output} output tokens. However, the model's context length is"
        " only {limit} tokens, resulting in a maximum input length of {room} tokens. Please reduce the length of the"
        " input prompt.",
        "vllm",
    ),
    "vllm-decoder": OverflowWording(
        400,
        "BadRequestError",
        "The decoder prompt (length {tokens}) is longer than the maximum model length of {limit}. Make sure that"
        " `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
        "vllm",
    ),
    "sglang": OverflowWording(
        400,
        "BadRequestError",
        "The input ({tokens} tokens) is longer than the model's context length ({limit} tokens).",
        "vllm",
    ),
    "deepinfra": OverflowWording(400, "", "input length {tokens} exceeds the maximum context length of this model"),
    "litellm": OverflowWording(
        400,
        "ContextWindowExceededError",
        "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: OpenAIException -"
        " Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total of"
        " {tokens} tokens.",
    ),
    "moonshot": OverflowWording(
        400,
        "invalid_request_error",
        "Invalid request: Your request exceeded model token limit: {limit} (requested: {tokens})",
    ),
    "ds4": OverflowWording(
        400,
        "",
        "Prompt has {tokens:,} tokens, but the configured context size is {limit:,} tokens",
        "flat",
    ),
    # NousResearch/OpenManus#79, 2025-03; the form of the V4 models is not known.
    "deepseek": OverflowWording(
        400,
        "invalid_request_error",
        "This model's maximum context length is {limit} tokens. However, you requested {total} tokens ({tokens} in the"
        " messages, {output} in the completion). Please reduce the length of the messages or completion.",
    ),
    "zai": OverflowWording(400, "1210", "tokens in request more than max tokens allowed"),
    "cohere": OverflowWording(
        400,
        "",
        "too many tokens: total number of tokens in the prompt cannot exceed {limit} - received {tokens}. Try using a"
        " shorter prompt",
        "flat",
    ),
    "cohere-total": OverflowWording(
        400,
        "",
        "total tokens ({tokens}) exceeds the model's maximum limit",
        "flat",
    ),
    "ai21": OverflowWording(422, "", "Prompt has too many tokens. Requested {tokens} tokens", "flat"),
    "replicate": OverflowWording(400, "ModelError", "input is too long", "flat"),
    "watsonx": OverflowWording(
        400,
        "invalid_input_argument",
        "Invalid input argument for Model '{model}': the number of input tokens {tokens} cannot exceed the total tokens"
        " limit {limit} for this model",
    ),
    "github-models": OverflowWording(
        413,
        "tokens_limit_reached",
        "Request body too large for {model} model. Max size: {limit} tokens.",
    ),
    # mangowhoiscloud/geode#668, 2026-04-05.
    "glm": OverflowWording(400, "1261", "Prompt exceeds max length"),
    # agentscope-ai/QwenPaw#6255, 2026-07-19: the limit, never the size.
    "qwen": OverflowWording(
        400,
        "invalid_parameter_error",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, {limit}]",
    ),
    # MiniMax-AI/MiniMax-M2#119, 2026-05-04. Every other bad parameter is a 2013 too.
    "minimax": OverflowWording(400, "bad_request_error", "invalid params, context window exceeds limit (2013)"),
    # UKGovernmentBEIS/inspect_ai#5208, 2026-09: the budget is below the window that is advertised.
    "xai-budget": OverflowWording(
        400,
        "invalid-argument",
        "Failed to start sampling: [input_too_large] Current message ({tokens} tokens) exceeds budget ({limit} tokens)",
    ),
    # cline/cline#5140; anomalyco/opencode#1551.
    "cerebras": OverflowWording(
        400,
        "context_length_exceeded",
        "Please reduce the length of the messages or completion. Current length is {tokens} while limit is {limit}",
    ),
    # OpenRouter's own wording for an endpoint that is too small.
    "openrouter-context": OverflowWording(
        400,
        "",
        "This endpoint's maximum context length is {limit} tokens. However, you requested about {total} tokens"
        " ({tokens} of text input, {output} in the output). Please reduce the length of either one, or use the"
        ' "middle-out" transform to compress your prompt automatically.',
    ),
    "bedrock-short": OverflowWording(400, "ValidationException", "Input is too long for requested model.", "flat"),
    # vllm 0.33.0, renderers/params.py: only the prompt counts.
    "vllm-prompt": OverflowWording(
        400,
        "BadRequestError",
        "This model's maximum context length is {limit} tokens. However, your prompt contains {tokens} input tokens,"
        " which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
        " (parameter=input_tokens, value={tokens})",
    ),
    # sglang 0.5.23: the requested output counts.
    "sglang-total": OverflowWording(
        400,
        "BadRequestError",
        "Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total of"
        " {total} tokens: {tokens} tokens from the input messages and {output} tokens for the completion. Please reduce"
        " the number of tokens in the input messages or the completion to fit within the limit.",
        "vllm",
    ),
    # ollama at fb30760, 2026-08-21, with truncate: false and shift: false.
    "ollama-context": OverflowWording(
        400,
        "invalid_request_error",
        "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the"
        " context length in settings, or use a model with a longer context length",
    ),
    # Gitlawb/openclaude#353, 2026-04-04; tinyhumansai/openhuman#3550, 2026-06.
    "lmstudio": OverflowWording(
        400,
        "",
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: {tokens}>="
        " n_ctx: {limit}). Try to load the model with a larger context length, or provide a shorter input.",
    ),
    "nginx": OverflowWording(413, "", "413 Request Entity Too Large", "html"),
}
"""All wordings by their names."""
OVERFLOW_NAMES = ("native", "silent", *OVERFLOW_WORDINGS)
"""The allowed values of ``ProviderSettings.overflow``."""


_CHARACTERS_PER_TOKEN = 4
"""Characters for a token, in the wordings of servers that count characters (Titan); about right for English."""


class OverflowNumbers(Struct, frozen=True):
    """The numbers of a request that is too large, in tokens."""

    tokens: int
    """The input."""
    limit: int
    """The window."""
    output: int
    """The requested output."""
    model: str


def make_overflow_refusal(name: str, api: str, numbers: OverflowNumbers, *, stream: bool) -> RefusalReply:
    """Build the refusal in the wording ``name``, or in the API's own for ``native``.

    Raises ``ConfigError`` for an unknown name.
    """
    wording_name = NATIVE_WORDINGS[api] if name == "native" else name
    does_input_fit = numbers.tokens <= numbers.limit
    if does_input_fit:
        wording_name = SUM_WORDINGS.get(wording_name, wording_name)
    wording = OVERFLOW_WORDINGS.get(wording_name)
    if wording is None:
        raise ConfigError(f"no provider says an overflow as {name!r}; choose one of {', '.join(OVERFLOW_NAMES)}")
    if does_input_fit and "{output}" not in wording.text:
        # The wording has room for one number only. It must be one over the limit, so it is the sum.
        numbers = replace(numbers, tokens=numbers.tokens + numbers.output, output=0)
    text = wording.text.format(
        tokens=numbers.tokens,
        limit=numbers.limit,
        output=numbers.output,
        total=numbers.tokens + numbers.output,
        room=max(0, numbers.limit - numbers.output),
        most=numbers.limit * _CHARACTERS_PER_TOKEN,
        characters=numbers.tokens * _CHARACTERS_PER_TOKEN,
        model=numbers.model,
    )
    code = wording.code
    if wording.in_stream and not code:
        code = OVERFLOW_WORDINGS[NATIVE_WORDINGS[api]].code
    details: dict[str, str | int] = {}
    if code == "context_length_exceeded":
        details["param"] = _PARAM_OF_API[api]
    body = _encode_error_body(wording, text, numbers)
    return RefusalReply(
        wording.status,
        code,
        text,
        in_stream=wording.in_stream and stream,
        body=body,
        details=details,
    )


_PARAM_OF_API = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}


def make_nginx_page(title: str) -> bytes:
    """Return an error page of nginx."""
    head = f"<head><title>{title}</title></head>"
    return f"<html>{head}<body><center><h1>{title}</h1></center><hr><center>nginx</center></body></html>".encode()


def _encode_error_body(wording: OverflowWording, text: str, numbers: OverflowNumbers) -> bytes:
    """Encode the error body of a server with a form of its own, or return empty bytes for the API's usual form."""
    if wording.shape == "html":
        return make_nginx_page(text)
    shapes: dict[str, object] = {
        "flat": {"message": text, "code": wording.code},
        "vllm": {"object": "error", "message": text, "type": wording.code, "param": None, "code": wording.status},
        "mistral": {
            "object": "error",
            "message": text,
            "type": "invalid_request_invalid_args",
            "param": None,
            "code": wording.code,
        },
        "tgi": {"error": text, "error_type": wording.code},
        "llama": {
            "error": {
                "code": wording.status,
                "message": text,
                "type": wording.code,
                "n_prompt_tokens": numbers.tokens,
                "n_ctx": numbers.limit,
            }
        },
    }
    return msgspec.json.encode(shapes[wording.shape]) if wording.shape in shapes else b""
