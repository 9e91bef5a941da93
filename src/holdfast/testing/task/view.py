"""What a request shows the model: the only thing that the model of the task knows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from holdfast.testing.provider.blocks import Block


class View(Struct, frozen=True):
    """A request's words: all of them, and those that came since the model spoke last."""

    text: str
    newest: str

    def find(self, pattern: str) -> re.Match[str] | None:
        """Return the last place where ``pattern`` stands; nothing where the request does not show it."""
        return next(reversed(self.every(pattern)), None)

    def every(self, pattern: str) -> list[re.Match[str]]:
        """Return all places where ``pattern`` stands, in the order in which they are read."""
        return list(re.finditer(pattern, self.text, re.MULTILINE))


def view(blocks: Sequence[Block]) -> View:
    """Return what the messages of a request say."""
    said = [block for block in blocks if block.section == "messages"]
    spoken = next((at for at in range(len(said), 0, -1) if said[at - 1].role in ("assistant", "model")), 0)
    return View(_words(said), _words(said[spoken:]))


def _words(blocks: Sequence[Block]) -> str:
    """Return what blocks say, without the marks that a search puts around the words that it found."""
    return "\n".join([block.rendering.text for block in blocks]).replace("«", "").replace("»", "")
