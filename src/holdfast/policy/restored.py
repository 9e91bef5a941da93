"""Files restored: what the agent read last stands behind the summary again."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.messages import Message, result_text
from holdfast.model.parts import Text
from holdfast.policy.ledger import deeds
from holdfast.view.tokens import count


def restored(head: Sequence[Message], most: int, tokens: int, scale: float = 1.0) -> tuple[Text, ...]:
    """Return the ``most`` files of ``head`` touched last, newest first, as they were read; longer ones only by name.

    Longer is what has more than ``tokens`` tokens, where ``scale`` real ones are one of the estimator. What the agent
    changed after it read it is told to be so.
    """
    if not most:
        return ()
    touched: dict[str, str] = {}
    reads: dict[str, str] = {}
    results = {result.call_id: result_text(result) for message in head for result in message.results}
    for one in deeds(head):
        if one.verb in ("read", "edit") and not one.failed:
            touched.pop(one.what, None)
            touched[one.what] = one.verb
        if one.verb == "read" and not one.failed:
            reads[one.what] = results.get(one.call_id, "")
    return tuple(_told(path, touched[path], reads.get(path), tokens / scale) for path in [*reversed(touched)][:most])


def _told(path: str, verb: str, text: str | None, tokens: float) -> Text:
    if text is None:
        return Text(f"{path} was changed and never read; read it to see it")
    if count(text) > tokens:
        return Text(f"{path} was read; it is too long to show")
    changed = ", and changed since" if verb == "edit" else ""
    return Text(f"{path} as it was last read{changed}:\n{text}")
