"""The window of a local server is read from its own field, and never from the length its model was trained with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.server_windows import WINDOW_QUESTIONS, ServerWindow, read_window

QUESTIONS = {question.path: question for question in WINDOW_QUESTIONS}
LM_STUDIO = {
    "models": [
        {"key": "other", "loaded_instances": [], "max_context_length": 131_072},
        {
            "key": "qwen/qwen3-8b",
            "max_context_length": 131_072,
            "loaded_instances": [
                {"id": "qwen/qwen3-8b", "config": {"context_length": 8_192}},
                {"id": "qwen/qwen3-8b:2", "config": {"context_length": 16_384}},
            ],
        },
    ]
}
OLLAMA_MODEL = {"model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40_960}, "capabilities": []}


def read(path, answer, model="m"):
    """Return the tokens and whether they are an upper bound, or None."""
    window = read_window(QUESTIONS[path], answer, model)
    return window and (window.tokens, window.is_upper_bound)


@pytest.mark.parametrize(
    ("path", "answer", "model", "expected"),
    [
        ("/props", {"default_generation_settings": {"n_ctx": 32_768}, "total_slots": 4}, "m", 32_768),
        ("/props", {"default_generation_settings": {"n_ctx_train": 32_768}}, "m", None),
        ("/api/ps", {"models": [{"name": "m:latest", "context_length": 4_096}]}, "m", 4_096),
        ("/api/ps", {"models": [{"name": "a", "model": "a", "context_length": 4_096}]}, "m", None),
        ("/api/ps", {"models": []}, "m", None),
        ("/api/show", {"parameters": 'stop  "x"\nnum_ctx         16384\n'}, "m", 16_384),
        ("/api/v1/models", LM_STUDIO, "qwen/qwen3-8b", 8_192),
        ("/api/v1/models", LM_STUDIO, "qwen/qwen3-8b:2", 16_384),
        ("/api/v1/models", LM_STUDIO, "other", None),
        ("/api/v0/models", {"data": [{"id": "m", "loaded_context_length": 8_000}]}, "m", 8_000),
        ("/api/v0/models", {"data": [{"id": "m", "state": "not-loaded", "max_context_length": 99_999}]}, "m", None),
        ("/v1/models", {"data": [{"id": "m", "max_model_len": 65_536, "owned_by": "vllm"}]}, "m", 65_536),
        ("/v1/models", {"data": [{"id": "base", "max_model_len": 65_536}]}, "an-adapter", 65_536),
        ("/v1/models", {"data": [{"id": "a", "max_model_len": 9_999}, {"id": "b"}]}, "c", None),
        ("/v1/models", {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 99_999}}]}, "m", None),
    ],
)  # fmt: skip
def test_read_window_reads_the_field_of_each_server(path, answer, model, expected):
    """The size that is loaded counts; a model that is not loaded says nothing."""
    assert read(path, answer, model) == (expected and (expected, False))


def test_read_window_takes_a_trained_length_as_an_upper_bound():
    """Ollama loads models with less than they were trained for, so that number only bounds the window."""
    assert read("/api/show", OLLAMA_MODEL) == (40_960, True)
    assert read("/api/show", {**OLLAMA_MODEL, "parameters": "num_ctx 8192"}) == (8_192, False)


@pytest.mark.parametrize("size", [0, -1, 12, 1_023, True, "32768", None, 3.5])
def test_read_window_takes_no_number_that_is_no_window(size):
    """A window has at least 1,024 tokens and is a whole number."""
    assert read("/props", {"default_generation_settings": {"n_ctx": size}}) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "models", "id", "name", "loaded_instances", "config", "parameters", "model_info"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(sorted(QUESTIONS)), json_values, st.text(max_size=3))
def test_read_window_reads_any_answer(path, answer, model):
    """Whatever a server answers, reading it ends with a window or nothing."""
    window = read_window(QUESTIONS[path], answer, model)
    assert window is None or (isinstance(window, ServerWindow) and window.tokens >= 1_024)
