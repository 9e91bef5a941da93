"""What an answer says: message, history, reason, usage and error, from a body or a stream of each of the four APIs."""

from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.answers.parsed_answer import ParsedAnswer, StopReason
from holdfast.providers.answers.usage import parse_billed_usage, parse_window_usage

__all__ = ["AnswerStream", "ParsedAnswer", "StopReason", "parse_answer", "parse_billed_usage", "parse_window_usage"]
