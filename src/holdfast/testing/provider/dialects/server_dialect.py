"""What is known of one server: its rules, the form of its errors and answers, its window endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from holdfast.testing.provider.dialects.server_request import ServerRequest


class ServerError(Struct, frozen=True):
    """One refusal in the words of a server; what is empty takes the usual value of that server."""

    message: str
    status: int = 400
    code: str | int | None = None
    kind: str = ""
    """``type`` of the error."""
    param: str | None = None
    details: Mapping[str, Any] = {}
    """Further facts that the server's error body has a place for."""


ServerErrors = Iterator[ServerError]
"""What a rule finds in a request; the server reports the first."""


class ServerRule(Struct, frozen=True):
    """One thing that a server refuses. The docstring of ``check`` is the rule."""

    name: str
    """The server's name, a dot, and the rule's own."""
    check: Callable[[ServerRequest], ServerErrors]
    source: str
    """Page or issue with its date; several are separated by semicolons."""
    api: str = "openai-chat"


ReasoningForm = Literal["", "reasoning_content", "reasoning", "details", "thinking-chunks", "think-tags"]
"""Where an answer has its reasoning: a field, OpenRouter's details, Mistral's chunks, or tags in the text."""


def _never_think(request: ServerRequest) -> bool:
    del request
    return False


def _send_reasoning_content(request: ServerRequest) -> ReasoningForm:
    del request
    return "reasoning_content"


def make_openai_call_id(digest: str, name: str, index: int) -> str:
    """Make the id of a call as OpenAI does."""
    del name, index
    return f"call_{digest}"


def _keep_usage(usage: dict[str, Any]) -> dict[str, Any]:
    return usage


class AnswerForm(Struct, frozen=True):
    """How the answers of a server differ from those of Chat Completions."""

    is_thinking: Callable[[ServerRequest], bool] = _never_think
    """Returns whether the model thinks before it answers the request."""
    get_reasoning_form: Callable[[ServerRequest], ReasoningForm] = _send_reasoning_content
    make_call_id: Callable[[str, str, int], str] = make_openai_call_id
    """Makes the id of a call from a digest of 24 hexadecimal digits, the name of the tool and the index of the call."""
    adapt_usage: Callable[[dict[str, Any]], dict[str, Any]] = _keep_usage
    """Changes the usage of Chat Completions into that of the server."""
    extra_fields: Mapping[str, Any] = {}
    """Further top-level fields of an answer."""


class ServedModel(Struct, frozen=True):
    """The model that a local server has loaded, for its own endpoints."""

    name: str
    window: int
    max_output: int


class ServerEndpoint(Struct, frozen=True):
    """An endpoint of the server beside those of the APIs, which tells of its models."""

    path: str
    make_document: Callable[[Sequence[ServedModel]], Any]
    methods: tuple[str, ...] = ("GET",)


class PromptCut(Struct, frozen=True):
    """The numbers from which a server decides how much of a prompt it cuts off silently, in tokens."""

    window: int
    setup: int
    """Tools and system prompt."""
    messages: tuple[int, ...]
    """Each message."""


def _cut_nothing(request: ServerRequest, cut: PromptCut) -> int:
    del request, cut
    return 0


def _get_no_limit(request: ServerRequest) -> int | None:
    del request
    return None


def encode_openai_form(error: ServerError) -> Any:
    """Encode an error as OpenAI does."""
    kind = error.kind or "invalid_request_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


class ServerDialect(Struct, frozen=True):
    """One server that speaks one or more of the APIs."""

    name: str
    title: str
    """Its name for people."""
    default_model: str
    """The model of requests that name none, where the server allows that, and of its model list."""
    rules: tuple[ServerRule, ...] = ()
    missing_rules: frozenset[str] = frozenset()
    """Rules of the API that this server is known not to have, by their names in ``lint``."""
    encode_error: Callable[[ServerError], Any] = encode_openai_form
    """Encodes the body of an error."""
    reworded_codes: Mapping[str, str] = {}
    """Its words for refusals of the API that need knowledge of earlier answers, by the code of the refusal."""
    overflow: str = "native"
    """Its wording of an overflow, by the name in ``overflow_wordings``."""
    counts_output: bool | None = None
    """Whether the requested output must fit beside the input; None follows the model, as for the API itself."""
    get_max_output: Callable[[ServerRequest], int | None] = _get_no_limit
    """Returns the largest output limit that a request may ask for, or None for no such limit."""
    word_max_output: Callable[[int, int, str], ServerError] | None = None
    """Words the refusal of a limit that is too large: the limit asked for, the largest one, the model."""
    cut_prompt: Callable[[ServerRequest, PromptCut], int] = _cut_nothing
    """Returns the tokens that the server cuts off silently before the model reads the prompt."""
    answers: AnswerForm = AnswerForm()
    needs_model: bool = True
    """Whether a request must name its model."""
    base_paths: tuple[str, ...] = ()
    """Paths before ``/chat/completions`` and the other addresses, beside ``/v1``."""
    list_models: Callable[[Sequence[ServedModel]], Any] | None = None
    """Encodes the list of models at ``/v1/models``; None for OpenAI's."""
    endpoints: tuple[ServerEndpoint, ...] = ()
