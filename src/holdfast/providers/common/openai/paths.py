"""Paths of OpenAI's API, most of which the proxy relays without reading."""

OPENAI_PATH = (
    r"(?:/v1)?/(?:responses|conversations|chat|completions|embeddings|audio|images|videos|files|uploads|batches|"
    r"moderations|fine_tuning|vector_stores|assistants|threads|realtime|evals|containers|models)(?:/|\Z)"
)
"""A pattern that matches their beginning."""
