"""A strict check of files in ATIF, written from the rules of the format and independent of what writes them.

Every object allows its own fields only, with the types given here; null stands for a missing field. The rules between
fields are checked one by one. Faults are returned as texts that begin with a JSON path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

VERSIONS = {f"ATIF-v1.{minor}" for minor in range(9)}
IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
AUDIO_TYPES = {
    "audio/wav",
    "audio/mpeg",
    "audio/mp4",
    "audio/aac",
    "audio/ogg",
    "audio/flac",
    "audio/webm",
    "audio/aiff",
}
AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
"""Fields that a step of the user or the system must not have."""

_TEXT, _COUNT, _NUMBER, _FLAG, _OBJECT, _LIST = "text", "count", "number", "flag", "object", "list"
_REQUIRED: dict[str, dict[str, str]] = {
    "trajectory": {"agent": _OBJECT, "steps": _LIST, "schema_version": _TEXT},
    "agent": {"name": _TEXT, "version": _TEXT},
    "step": {"step_id": _COUNT, "source": _TEXT, "message": "content"},
    "call": {"tool_call_id": _TEXT, "function_name": _TEXT, "arguments": _OBJECT},
    "observation": {"results": _LIST},
    "result": {},
    "reference": {},
    "metrics": {},
    "final_metrics": {},
    "part": {"type": _TEXT},
    "source": {"media_type": _TEXT, "path": _TEXT},
}
_OPTIONAL: dict[str, dict[str, str]] = {
    "trajectory": {
        "session_id": _TEXT,
        "trajectory_id": _TEXT,
        "notes": _TEXT,
        "final_metrics": _OBJECT,
        "continued_trajectory_ref": _TEXT,
        "subagent_trajectories": _LIST,
        "extra": _OBJECT,
    },
    "agent": {"model_name": _TEXT, "tool_definitions": _LIST, "extra": _OBJECT},
    "step": {
        "timestamp": _TEXT,
        "model_name": _TEXT,
        "reasoning_effort": "text or number",
        "reasoning_content": _TEXT,
        "tool_calls": _LIST,
        "observation": _OBJECT,
        "metrics": _OBJECT,
        "is_copied_context": _FLAG,
        "llm_call_count": _COUNT,
        "extra": _OBJECT,
    },
    "call": {"extra": _OBJECT},
    "observation": {},
    "result": {"source_call_id": _TEXT, "content": "content", "subagent_trajectory_ref": _LIST, "extra": _OBJECT},
    "reference": {"trajectory_id": _TEXT, "trajectory_path": _TEXT, "session_id": _TEXT, "extra": _OBJECT},
    "metrics": {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "cached_tokens": _COUNT,
        "cost_usd": _NUMBER,
        "prompt_token_ids": _LIST,
        "completion_token_ids": _LIST,
        "logprobs": _LIST,
        "extra": _OBJECT,
    },
    "final_metrics": {
        "total_prompt_tokens": _COUNT,
        "total_completion_tokens": _COUNT,
        "total_cached_tokens": _COUNT,
        "total_cost_usd": _NUMBER,
        "total_steps": _COUNT,
        "extra": _OBJECT,
    },
    "part": {"text": _TEXT, "source": _OBJECT},
    "source": {"duration_sec": _NUMBER},
}


def find_atif_faults(document: object) -> list[str]:
    """Return what is wrong with a trajectory; an empty list for a valid one."""
    return list(_check_trajectory(document, "$"))


def _check_trajectory(document: object, path: str) -> Iterator[str]:
    yield from _check_fields(document, "trajectory", path)
    if not isinstance(document, dict):
        return
    version = document.get("schema_version")
    if version not in VERSIONS:
        yield f"{path}.schema_version: {version!r} is no version"
    yield from _check_fields(document.get("agent"), "agent", f"{path}.agent")
    if document.get("final_metrics") is not None:
        yield from _check_fields(document["final_metrics"], "final_metrics", f"{path}.final_metrics")
    steps = _list(document.get("steps"))
    if not steps:
        yield f"{path}.steps: there is none"
    for index, step in enumerate(steps):
        yield from _check_step(step, f"{path}.steps[{index}]", index + 1, str(version))
    embedded_ids = []
    for index, embedded in enumerate(_list(document.get("subagent_trajectories"))):
        yield from _check_trajectory(embedded, f"{path}.subagent_trajectories[{index}]")
        embedded_ids.append(embedded.get("trajectory_id") if isinstance(embedded, dict) else None)
    if None in embedded_ids or len(set(embedded_ids)) < len(embedded_ids):
        yield f"{path}.subagent_trajectories: each needs a trajectory_id of its own, these are {embedded_ids}"
    if embedded_ids and str(version) < "ATIF-v1.7":
        yield f"{path}.subagent_trajectories: version {version} has none"


def _check_step(step: object, path: str, number: int, version: str) -> Iterator[str]:
    yield from _check_fields(step, "step", path)
    if not isinstance(step, dict):
        return
    if step.get("step_id") != number:
        yield f"{path}.step_id: {step.get('step_id')!r} where {number} follows"
    if step.get("source") not in ("system", "user", "agent"):
        yield f"{path}.source: {step.get('source')!r} is none"
    if step.get("timestamp") is not None:
        try:
            datetime.fromisoformat(step["timestamp"])
        except (TypeError, ValueError):
            yield f"{path}.timestamp: {step['timestamp']!r} is no time"
    yield from _check_fields_of_source(step, path)
    yield from _check_content(step.get("message"), f"{path}.message", version)
    calls = _list(step.get("tool_calls"))
    yield from _check_calls(calls, f"{path}.tool_calls")
    if step.get("metrics") is not None:
        yield from _check_fields(step["metrics"], "metrics", f"{path}.metrics")
    if step.get("observation") is not None:
        yield from _check_observation(step["observation"], f"{path}.observation", calls, version)


def _check_calls(calls: list[Any], path: str) -> Iterator[str]:
    for index, call in enumerate(calls):
        yield from _check_fields(call, "call", f"{path}[{index}]")
    call_ids = _list_call_ids(calls)
    if len(set(call_ids)) < len(call_ids) or "" in call_ids:
        yield f"{path}: an id is empty or repeated: {call_ids}"


def _list_call_ids(calls: list[Any]) -> list[Any]:
    return [call.get("tool_call_id") for call in calls if isinstance(call, dict)]


def _check_fields_of_source(step: dict[str, Any], path: str) -> Iterator[str]:
    """Check the fields that only some steps may have."""
    forbidden = [] if step.get("source") == "agent" else list(AGENT_ONLY)
    if step.get("source") == "agent" and step.get("llm_call_count") == 0:
        forbidden = ["metrics", "reasoning_content"]
    if step.get("is_copied_context"):
        forbidden.append("metrics")
    for name in forbidden:
        if step.get(name) is not None:
            yield f"{path}.{name}: a step of this kind must not have it"


def _check_observation(observation: object, path: str, calls: list[Any], version: str) -> Iterator[str]:
    call_ids = _list_call_ids(calls)
    yield from _check_fields(observation, "observation", path)
    if not isinstance(observation, dict):
        return
    for index, result in enumerate(_list(observation.get("results"))):
        place = f"{path}.results[{index}]"
        yield from _check_fields(result, "result", place)
        if not isinstance(result, dict):
            continue
        source = result.get("source_call_id")
        if source is not None and source not in call_ids:
            yield f"{place}.source_call_id: {source!r} is no call of the step: {call_ids}"
        if result.get("content") is not None:
            yield from _check_content(result["content"], f"{place}.content", version)
        for number, reference in enumerate(_list(result.get("subagent_trajectory_ref"))):
            reference_path = f"{place}.subagent_trajectory_ref[{number}]"
            yield from _check_fields(reference, "reference", reference_path)
            has_target = isinstance(reference, dict) and {"trajectory_id", "trajectory_path"} & reference.keys()
            if not has_target:
                yield f"{reference_path}: it names neither a trajectory nor a file"


def _check_content(content: object, path: str, version: str) -> Iterator[str]:
    if isinstance(content, str):
        return
    for index, part in enumerate(_list(content)):
        place = f"{path}[{index}]"
        yield from _check_fields(part, "part", place)
        if not isinstance(part, dict):
            continue
        if part.get("type") == "audio" and version < "ATIF-v1.8":
            yield f"{place}: version {version} has no sound"
        has_text, has_source = part.get("text") is not None, part.get("source") is not None
        if part.get("type") == "text":
            if not has_text or has_source:
                yield f"{place}: a text has a text and no source"
        elif has_text or not has_source:
            yield f"{place}: a file has a source and no text"
        else:
            yield from _check_source(part, place)


def _check_source(part: dict[str, Any], path: str) -> Iterator[str]:
    source = part["source"]
    yield from _check_fields(source, "source", f"{path}.source")
    types = {"image": IMAGE_TYPES, "audio": AUDIO_TYPES}.get(str(part.get("type")))
    if types is None:
        yield f"{path}.type: {part.get('type')!r} is none"
    elif isinstance(source, dict):
        if source.get("media_type") not in types:
            yield f"{path}.source.media_type: {source.get('media_type')!r} is no {part['type']}"
        if str(source.get("path")).startswith("data:"):
            yield f"{path}.source.path: data inside the file"


def _check_fields(value: object, kind: str, path: str) -> Iterator[str]:
    """Check that an object has its required fields, no unknown ones, and the right types."""
    if not isinstance(value, dict):
        yield f"{path}: {type(value).__name__} where an object is wanted"
        return
    required, optional = _REQUIRED[kind], _OPTIONAL[kind]
    for name in required:
        if value.get(name) is None:
            yield f"{path}.{name}: it is missing"
    for name, item in value.items():
        wanted = required.get(name) or optional.get(name)
        if wanted is None:
            yield f"{path}.{name}: {kind} has no such field"
        elif item is not None and not _IS_OF_TYPE[wanted](item):
            yield f"{path}.{name}: {type(item).__name__} where {wanted} is wanted"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_IS_OF_TYPE: Mapping[str, Any] = {
    _TEXT: lambda value: isinstance(value, str),
    _COUNT: _is_count,
    _NUMBER: _is_number,
    _FLAG: lambda value: isinstance(value, bool),
    _OBJECT: lambda value: isinstance(value, dict),
    _LIST: lambda value: isinstance(value, list),
    "content": lambda value: isinstance(value, str | list),
    "text or number": lambda value: isinstance(value, str) or _is_number(value),
}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
