"""Read what a provider's refusal says from the exception that a framework or a client library raised for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.providers.errors.report import ErrorReport

OVERFLOW_CLASSES = frozenset(
    {
        "ContextOverflowError",  # LangChain
        "ContextWindowExceededError",  # LiteLLM, with which smolagents, ADK and the OpenAI Agents SDK call models too
        "ContextWindowOverflowException",  # Strands
        "ModelContextWindowExceededError",  # Pydantic AI
    }
)
"""Classes of errors that say that a request was too long, whatever their text. By name, since no framework is imported
here."""


def is_overflow_class(error: object) -> bool:
    """Return whether the class of ``error``, or a base of it, says that the request was too long."""
    return any(base.__name__ in OVERFLOW_CLASSES for base in type(error).__mro__)


def read_provider_error(error: Exception) -> ErrorReport:
    """Return what ``error`` says: the status, the code and the body, as far as it has them, and its text.

    The client libraries of OpenAI and Anthropic, and those who use their errors, have ``status_code``, ``code`` and
    ``body``; Google's has ``code`` for the status and ``details`` for the body; Amazon's has a mapping ``response``.
    """
    response = getattr(error, "response", None)
    amazon_error = _read_amazon_error(response) if isinstance(response, Mapping) else {}
    code = getattr(error, "code", None)
    statuses = [getattr(error, "status_code", None), code, getattr(response, "status_code", None)]
    statuses.append(amazon_error.get("status"))
    bodies = [getattr(error, "body", None), getattr(error, "details", None)]
    return ErrorReport(
        status=next((status for status in statuses if _is_status(status)), None),
        code=code if isinstance(code, str) else str(amazon_error.get("code", "")),
        message=str(error),
        body=next((body for body in bodies if body and not callable(body)), b""),
    )


def _read_amazon_error(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status and the code of an error of Amazon's library (``ClientError.response``)."""
    error = response.get("Error") or {}
    return {"status": (response.get("ResponseMetadata") or {}).get("HTTPStatusCode"), "code": error.get("Code", "")}


def _is_status(value: Any) -> bool:
    """Return whether ``value`` is a status of HTTP; some errors have numbers of another kind under the same name."""
    return isinstance(value, int) and 100 <= value <= 599
