"""What an answer says: message, history, reason, usage and error, from a body or a stream of each of the four APIs."""

from holdfast.providers.responses.fold import AnswerStream, parse_answer
from holdfast.providers.responses.usage import parse_billed_usage, parse_window_usage
from holdfast.providers.responses.values import ParsedAnswer, StopReason

__all__ = ["AnswerStream", "ParsedAnswer", "StopReason", "parse_answer", "parse_billed_usage", "parse_window_usage"]
