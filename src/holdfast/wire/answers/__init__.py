"""What an answer says: message, history, reason, usage and error, from a body or a stream of each of the four APIs."""

from holdfast.wire.answers.fold import Fold, answer
from holdfast.wire.answers.usage import spent, usage
from holdfast.wire.answers.values import Answer, Stop

__all__ = ["Answer", "Fold", "Stop", "answer", "spent", "usage"]
