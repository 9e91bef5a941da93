"""Classify what a provider returned instead of a usable answer: an overflow, a rate limit, or another error.

The classifier reads an error object, or an answer's finish reason and usage, but never the text of a conversation: a
model may write about context windows too, and ordinary phrases ("in context of") have triggered overflow handling in
other tools.
"""

from __future__ import annotations

from holdfast.providers.errors.answer_rules import classify_answer_report
from holdfast.providers.errors.error_rules import classify_error_report
from holdfast.providers.errors.report import (
    AnswerReport,
    ErrorReport,
    ProviderReport,
    Verdict,
)


def classify_error(report: ProviderReport | str | bytes, status: int | None = None) -> Verdict:
    """Classify a provider's error or answer, and read out the sizes and times that it states.

    ``report`` is the body or text of an error, with its HTTP ``status`` if known, or an ``ErrorReport`` or
    ``AnswerReport``, which can hold more. Raises ``TypeError`` for any other type.
    """
    if isinstance(report, str):
        report = ErrorReport(status=status, message=report)
    elif isinstance(report, bytes):
        report = ErrorReport(status=status, body=report)
    if isinstance(report, ErrorReport):
        return classify_error_report(report)
    if isinstance(report, AnswerReport):
        return classify_answer_report(report)
    raise TypeError(f"report is of type {type(report).__name__}; give an ErrorReport or an AnswerReport")
