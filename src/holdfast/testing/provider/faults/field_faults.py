"""Servers that refuse, want or cap single fields, in their own words; each refusal names the field.

Written from public refusals (sources at the wordings) and independent of what reads them in ``providers/errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from holdfast.errors import ConfigError
from holdfast.providers.common.json.raw_json import encode_json
from holdfast.testing.provider.calls import RefusalReply

FieldFaultKind: TypeAlias = Literal["refuses", "wants", "caps", "refuses_beta"]


class FieldFault(Struct, frozen=True):
    """What a server has against one field of its requests."""

    kind: FieldFaultKind
    field: str
    """Steps to the field with ``*`` for a list (``messages.*.name``), or the name of a beta."""
    words: str = "openai"
    """Whose wording it is: a name in ``FIELD_WORDINGS`` under the kind."""
    role: str = ""
    """The role or type of the elements that it is about; empty for all."""
    limit: int = 0
    """The largest value that ``caps`` accepts."""
    beside: str = ""
    """Another field without which ``wants`` does not want this one."""

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` for a wording that no server uses."""
        wordings = FIELD_WORDINGS[self.kind]
        if self.words not in wordings:
            raise ConfigError(
                f"no server says {self.kind!r} in the words of {self.words!r}; choose {', '.join(wordings)}"
            )


class _Place(NamedTuple):
    """Where a body has the field, or lacks it."""

    steps: tuple[str | int, ...]
    role: str

    @property
    def name(self) -> str:
        return str(self.steps[-1])

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.steps))

    @property
    def bracketed(self) -> str:
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)
        return text.removeprefix(".")

    @property
    def parent(self) -> str:
        return ".".join(map(str, self.steps[:-1]))

    @property
    def with_role(self) -> str:
        """The steps with the role behind the first index, as Cerebras and Bedrock write them."""
        steps = [str(step) for step in self.steps]
        if len(steps) > 2 and self.role:
            steps.insert(2, self.role)
        return ".".join(steps)


def _refuse(message: str, code: str = "", status: int = 400) -> RefusalReply:
    return RefusalReply(status, code, message)


def _refuse_with_body(body: Mapping[str, Any], status: int = 400) -> RefusalReply:
    return RefusalReply(status, "", "", body=encode_json(body))


def _word_groq(place: _Place, fault: FieldFault) -> RefusalReply:
    """Word a refusal as Groq does (freellmapi#1070, 2026-08-30; chatbot#21)."""
    del fault
    if len(place.steps) == 1:
        return _refuse(f"property '{place.name}' is unsupported")
    inner = f"('{place.parent}' : property '{place.name}' is unsupported)"
    return _refuse(f"'{place.parent}' : for 'role:{place.role}' the following must be satisfied[{inner}]")


def _word_cerebras(place: _Place, fault: FieldFault) -> RefusalReply:
    """Word a refusal as Cerebras does, in a body without ``error`` (qwen-code#11045, 2026-09-04)."""
    del fault
    path = place.with_role if len(place.steps) > 1 else f"body.{place.name}"
    message = f"{path}: property '{path}' is unsupported"
    return _refuse_with_body(
        {"message": message, "type": "invalid_request_error", "param": "validation_error", "code": "wrong_api_format"}
    )


def _word_mistral(place: _Place, fault: FieldFault) -> RefusalReply:
    """Word a refusal as Mistral does, with the path in ``loc`` (partITech/php-mistral#76, 2025-11-13)."""
    del fault
    steps: list[str | int] = ["body", *place.steps]
    if len(place.steps) > 2 and place.role:
        steps.insert(3, place.role)
    detail = {"type": "extra_forbidden", "loc": steps, "msg": "Extra inputs are not permitted", "input": "…"}
    return _refuse_with_body(
        {"object": "Error", "detail": [detail], "type": "invalid_request_error", "code": 3001}, 422
    )


def _word_xai(place: _Place, fault: FieldFault) -> RefusalReply:
    """Word a refusal as xAI does: the name in camel case, the text as ``error`` (NativeTavern#83, 2026-09-15)."""
    del fault
    first, *others = place.name.split("_")
    name = first + "".join(word.title() for word in others)
    return _refuse_with_body(
        {
            "code": "Client specified an invalid argument",
            "error": f"Model grok-x does not support parameter {name}.",
        }
    )


def _word_openrouter(place: _Place, fault: FieldFault) -> RefusalReply:
    """Word a refusal of a provider behind OpenRouter, as JSON in a text."""
    del fault
    raw = encode_json({"error": {"message": f"Unknown parameter: '{place.bracketed}'."}}).decode()
    metadata = {"provider_name": "Somebody", "raw": raw}
    return _refuse_with_body({"error": {"code": 400, "message": "Provider returned error", "metadata": metadata}})


_Wording: TypeAlias = Callable[[_Place, FieldFault], RefusalReply]
FIELD_WORDINGS: Mapping[FieldFaultKind, Mapping[str, _Wording]] = {
    "refuses": {
        "openai": lambda place, _: _refuse(f"Unknown parameter: '{place.bracketed}'.", "unknown_parameter"),
        "azure": lambda place, _: _refuse(f"Unrecognized request argument supplied: {place.name}"),
        "anthropic": lambda place, _: _refuse(
            f"{place.dotted}: Extra inputs are not permitted", "invalid_request_error"
        ),
        "bedrock": lambda place, _: _refuse(
            f"Malformed input request: #: extraneous key [{place.name}] is not permitted, please reformat your input."
        ),
        "gemini": lambda place, _: _refuse(
            f'Invalid JSON payload received. Unknown name "{place.name}"'
            + (f" at '{place.parent}'" if place.parent else "")
            + ": Cannot find field.",
            "INVALID_ARGUMENT",
        ),
        "groq": _word_groq,
        "cerebras": _word_cerebras,
        "mistral": _word_mistral,
        "xai": _word_xai,
        "openrouter": _word_openrouter,
    },
    "wants": {
        "openai": lambda place, _: _refuse(
            f"Missing required parameter: '{place.bracketed}'.", "missing_required_parameter"
        ),
        "anthropic": lambda place, _: _refuse(f"{place.dotted}: Field required", "invalid_request_error"),
        "kimi": lambda place, _: _refuse(
            f"thinking is enabled but {place.name} is missing in assistant tool call message at index {place.steps[1]}"
        ),
        "deepseek": lambda place, _: _refuse(
            f"The `{place.name}` in the thinking mode must be passed back to the API.", "invalid_request_error"
        ),
        "minimax": lambda *_: _refuse("invalid params, function parameters is empty (2013)"),
    },
    "caps": {
        "openai": lambda place, fault: _refuse(
            f"{place.name} is too large: 999999. This model supports at most {fault.limit} completion tokens, whereas"
            " you provided 999999.",
            "invalid_value",
        ),
        "anthropic": lambda place, fault: _refuse(
            f"{place.name}: 999999 > {fault.limit}, which is the maximum allowed number of output tokens for claude-x",
            "invalid_request_error",
        ),
        "deepseek": lambda place, fault: _refuse(
            f"Invalid {place.name} value, the valid range of {place.name} is [1, {fault.limit}]"
        ),
        "groq": lambda place, fault: _refuse(
            f"`{place.name}` must be less than or equal to `{fault.limit}`, the maximum value for `{place.name}` is"
            " less than the `context_window` for this model"
        ),
    },
    "refuses_beta": {
        "anthropic": lambda place, _: _refuse(
            f"Unexpected value(s) `{place.name}` for the `anthropic-beta` header. Please consult our documentation or"
            " try again without the header.",
            "invalid_request_error",
        ),
        "bedrock": lambda *_: _refuse("invalid beta flag", "invalid_request_error"),
    },
}
"""Refusals by kind and server. Sources: notes of 2026-11-28 (khoj#1377, gajae-code#1688, litellm#30882,
semantic-kernel#10510, deer-flow#3043, waveterm#3266, qwen-code#11834, claude-code#49370, #49648)."""


def check_field_faults(
    body: Mapping[str, Any], betas: frozenset[str], faults: Sequence[FieldFault]
) -> RefusalReply | None:
    """Return the refusal of the first fault that ``body`` or its ``betas`` run into, or None."""
    for fault in faults:
        place = _find_fault(body, betas, fault)
        if place is not None:
            return FIELD_WORDINGS[fault.kind][fault.words](place, fault)
    return None


def _find_fault(body: Mapping[str, Any], betas: frozenset[str], fault: FieldFault) -> _Place | None:
    if fault.kind == "refuses_beta":
        return _Place((fault.field,), "") if fault.field in betas else None
    *outer, name = fault.field.split(".")
    for holder, steps, role in _iter_holders(body, outer, (), ""):
        if fault.role and role != fault.role:
            continue
        place = _Place((*steps, name), role)
        value = holder.get(name)
        has_cap_problem = fault.kind == "caps" and isinstance(value, int) and value > fault.limit
        is_refused = fault.kind == "refuses" and name in holder
        is_wanted = fault.kind == "wants" and (not fault.beside or holder.get(fault.beside))
        is_missing = is_wanted and value in (None, "")
        if has_cap_problem or is_refused or is_missing:
            return place
    return None


def _iter_holders(
    value: Any, steps: Sequence[str], place: tuple[str | int, ...], role: str
) -> Iterator[tuple[Mapping[str, Any], tuple[str | int, ...], str]]:
    """Yield the objects at ``steps`` below ``value``, with their places and the role of their element."""
    if not steps:
        if isinstance(value, Mapping):
            yield value, place, role
    elif steps[0] == "*" and isinstance(value, list):
        for index, element in enumerate(value):
            inner_role = role
            if isinstance(element, Mapping):
                inner_role = str(element.get("role") or element.get("type") or role)
            yield from _iter_holders(element, steps[1:], (*place, index), inner_role)
    elif isinstance(value, Mapping) and steps[0] in value:
        yield from _iter_holders(value[steps[0]], steps[1:], (*place, steps[0]), role)
