"""What local servers say about the window of the model they serve: the questions, and how to read each answer.

Each server has its own address for it and its own field. The number that a model was trained with is never taken for
its window: servers load models with less (Ollama with 4,096 by default). Read on 2026-11-28 in the servers' source and
pages; every question is a plain request without a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from holdfast.state.calibration.calibration import MIN_WINDOW_LIMIT


class ServerWindow(Struct, frozen=True):
    """A window in tokens, as a server states it."""

    tokens: int
    is_upper_bound: bool = False
    """Whether the server may have loaded the model with less."""


AnswerReader: TypeAlias = Callable[[Any, str], ServerWindow | None]
"""Reads a decoded answer for a model; None if it says nothing about that model's window."""


class WindowQuestion(Struct, frozen=True):
    """One request that a server may answer with the window of a model."""

    server: str
    """The server that has this address."""
    path: str
    read: AnswerReader
    method: Literal["GET", "POST"] = "GET"
    names_model: bool = False
    """Whether the model's name is sent, as ``{"model": …}``."""


def _read_llama_cpp(answer: Any, model: str) -> ServerWindow | None:
    """Read ``/props`` of llama-server: the window of one slot (ggml-org/llama.cpp tools/server/README.md).

    ``/v1/models`` has only ``n_ctx_train``, which is not the window.
    """
    del model
    return _make_window(_get_field(answer, "default_generation_settings", "n_ctx"))


def _read_ollama_loaded(answer: Any, model: str) -> ServerWindow | None:
    """Read ``/api/ps`` of Ollama: the models that are loaded now, with the window each was loaded with."""
    for entry in _iter_objects(_get_field(answer, "models")):
        if _is_same_model(model, entry.get("name"), entry.get("model")):
            return _make_window(entry.get("context_length"))
    return None


_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)
"""The parameter in the text of an Ollama Modelfile."""


def _read_ollama_model(answer: Any, model: str) -> ServerWindow | None:
    """Read ``/api/show`` of Ollama: the Modelfile's own window, else the trained one as an upper bound."""
    del model
    parameters = _get_field(answer, "parameters")
    match = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    if match is not None:
        return _make_window(int(match[1]))
    architecture = _get_field(answer, "model_info", "general.architecture")
    trained = _get_field(answer, "model_info", f"{architecture}.context_length")
    return _make_window(trained, is_upper_bound=True)


def _read_lm_studio(answer: Any, model: str) -> ServerWindow | None:
    """Read ``/api/v1/models`` of LM Studio (0.4): the loaded instances, the smallest window if there are several.

    A model that is not loaded says nothing: it is loaded with a default when it is first asked.
    """
    for entry in _iter_objects(_get_field(answer, "models")):
        instances = list(_iter_objects(entry.get("loaded_instances")))
        ids = [instance.get("id") for instance in instances]
        if not _is_same_model(model, entry.get("key"), entry.get("id"), *ids):
            continue
        own_instances = [instance for instance in instances if instance.get("id") == model] or instances
        windows = [_make_window(_get_field(instance, "config", "context_length")) for instance in own_instances]
        sizes = [window.tokens for window in windows if window is not None]
        return ServerWindow(min(sizes)) if sizes else None
    return None


def _read_lm_studio_old(answer: Any, model: str) -> ServerWindow | None:
    """Read ``/api/v0/models`` of LM Studio (0.3.6): ``loaded_context_length`` of a loaded model."""
    for entry in _iter_objects(_get_field(answer, "data")):
        if _is_same_model(model, entry.get("id")):
            return _make_window(entry.get("loaded_context_length"))
    return None


def _read_model_list(answer: Any, model: str) -> ServerWindow | None:
    """Read ``/v1/models`` of vLLM and SGLang: ``max_model_len`` of the model."""
    entries = list(_iter_objects(_get_field(answer, "data")))
    for entry in entries:
        if _is_same_model(model, entry.get("id"), entry.get("root")):
            return _make_window(entry.get("max_model_len"))
    # These servers serve one model under any of its names; an adapter's name may be missing in the list.
    if len(entries) == 1:
        return _make_window(entries[0].get("max_model_len"))
    return None


WINDOW_QUESTIONS: Sequence[WindowQuestion] = (
    WindowQuestion("llama.cpp", "/props", _read_llama_cpp),
    WindowQuestion("Ollama", "/api/ps", _read_ollama_loaded),
    WindowQuestion("LM Studio", "/api/v1/models", _read_lm_studio),
    WindowQuestion("LM Studio", "/api/v0/models", _read_lm_studio_old),
    WindowQuestion("vLLM or SGLang", "/v1/models", _read_model_list),
    WindowQuestion("Ollama", "/api/show", _read_ollama_model, "POST", names_model=True),
)
"""In order of trust: what is loaded now comes before what a model file says."""


_MAX_STATED_WINDOW = 100_000_000
"""Tokens that no model is near: a larger number is a mistake, and would switch compaction off."""


def read_window(question: WindowQuestion, answer: Any, model: str) -> ServerWindow | None:
    """Return the window of ``model`` that ``answer`` to ``question`` states, or None."""
    return question.read(answer, model)


def _make_window(tokens: Any, *, is_upper_bound: bool = False) -> ServerWindow | None:
    is_count = isinstance(tokens, int) and not isinstance(tokens, bool)
    if not is_count or not MIN_WINDOW_LIMIT <= tokens <= _MAX_STATED_WINDOW:
        return None
    return ServerWindow(tokens, is_upper_bound)


def _get_field(value: Any, *names: str) -> Any:
    """Return the field nested under ``names``, or None if it or an object around it is missing."""
    for name in names:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _iter_objects(value: Any) -> Iterator[Mapping[str, Any]]:
    for element in value if isinstance(value, list) else ():
        if isinstance(element, Mapping):
            yield element


def _is_same_model(model: str, *names: Any) -> bool:
    """Return whether one of ``names`` is ``model``; Ollama adds ``:latest`` to a name without a tag."""
    known = {name for name in names if isinstance(name, str)}
    return model in known or f"{model}:latest" in known
