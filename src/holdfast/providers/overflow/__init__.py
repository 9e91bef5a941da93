"""Is this an overflow? One classifier over a provider's error, or over an answer's finish reason and usage.

It reads what a provider says about a request, never the text of a conversation.
"""

from __future__ import annotations

from holdfast.providers.overflow.answers import of_answer, prompt_tokens
from holdfast.providers.overflow.errors import of_error
from holdfast.providers.overflow.report import KINDS, OVERFLOWS, AnswerReport, ErrorReport, Kind, Report, Verdict

__all__ = [
    "KINDS",
    "OVERFLOWS",
    "AnswerReport",
    "ErrorReport",
    "Kind",
    "Report",
    "Verdict",
    "classify",
    "prompt_tokens",
]


def classify(report: Report) -> Verdict:
    """Return what ``report`` is, with the numbers that it states; ``TypeError`` for what is no report."""
    if not isinstance(report, ErrorReport | AnswerReport):
        raise TypeError(f"report is of type {type(report).__name__}; give an ErrorReport or an AnswerReport")
    return of_error(report) if isinstance(report, ErrorReport) else of_answer(report)
