"""What an answer says: message, history, reason, usage and error, from a body or a stream of each of the four APIs."""

from holdfast.providers.responses.fold import Fold, answer
from holdfast.providers.responses.usage import spent, usage
from holdfast.providers.responses.values import Answer, Stop

__all__ = ["Answer", "Fold", "Stop", "answer", "spent", "usage"]
