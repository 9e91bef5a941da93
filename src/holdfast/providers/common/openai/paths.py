"""Paths of OpenAI's API, of which most are passed on and not read."""

OPENAI_PATH = (
    r"(?:/v1)?/(?:responses|conversations|chat|completions|embeddings|audio|images|videos|files|uploads|batches|"
    r"moderations|fine_tuning|vector_stores|assistants|threads|realtime|evals|containers|models)(?:/|\Z)"
)
"""A pattern of how they begin."""
