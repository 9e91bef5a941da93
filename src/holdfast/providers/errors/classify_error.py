"""Is this an overflow? One classifier over a provider's error, or over an answer's finish reason and usage.

It reads what a provider says about a request, never the text of a conversation.
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
    """Classify what a provider answered instead of a usable answer, with the numbers that it states.

    ``report`` is the body or text of the error, with the HTTP ``status`` if it is known, or a report that says more.
    Raises ``TypeError`` for anything else.
    """
    if isinstance(report, str):
        report = ErrorReport(status=status, message=report)
    elif isinstance(report, bytes):
        report = ErrorReport(status=status, body=report)
    if not isinstance(report, ErrorReport | AnswerReport):
        raise TypeError(f"report is of type {type(report).__name__}; give an ErrorReport or an AnswerReport")
    return classify_error_report(report) if isinstance(report, ErrorReport) else classify_answer_report(report)
