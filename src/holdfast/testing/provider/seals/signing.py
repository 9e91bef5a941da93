"""Thinking of the Messages API, signed over everything before it, and what becomes of it when that was changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.providers.models import traits
from holdfast.testing.provider.blocks import Block
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.reading import Request
from holdfast.testing.provider.seals.sealing import Sealed, digest, seal, unseal
from holdfast.testing.provider.settings import Settings

THINKING = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data", "data")}
"""Blocks of thinking: where their words and their signature are."""
_DATE = re.compile(r"[-@]\d{8}\b.*|-latest$")


class Checked(Struct, frozen=True):
    """What is left of a history once the reasoning that belongs to another one is out."""

    pieces: tuple[Block, ...]
    dropped: tuple[tuple[str, str], ...] = ()
    """Paths or ids of what was dropped, and why."""


def binds(model: str, settings: Settings) -> bool:
    """Return whether ``model`` binds its thinking to what came before it; an unknown Claude does."""
    if settings.binds != "auto":
        return settings.binds == "always"
    known = traits(model)
    return known.binds if known is not None else True


def same_model(one: str, other: str) -> bool:
    """Return whether two names are one model, dates aside."""
    return _DATE.sub("", one) == _DATE.sub("", other)


# -- the chain ---------------------------------------------------------------------------------------------------------


class Chain:
    """The digest of everything said so far. A compaction of ours stands for what it summarised."""

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        """Start with nothing, or with these pieces."""
        self.state = self.frame = ""
        for block in blocks:
            self.add(block)

    def add(self, block: Block) -> None:
        """Go on over one piece; tools that are loaded later are no part of what is signed."""
        if block.section == "tools" and isinstance(block.value, dict) and block.value.get("defer_loading"):
            return
        about = compaction_of(block)
        if about is not None and about.get("frame") == self.frame:
            self.state = about.get("end", "")
            return
        self.state = digest(self.state.encode(), block.key)
        if block.section != "messages":
            self.frame = self.state


def compaction_of(block: Block) -> Sealed | None:
    """Return what a compaction block of ours says it stands for, nothing for other blocks."""
    if block.kind != "compaction":
        return None
    sealed = block.value.get("signature") or block.value.get("encrypted_content")
    return unseal(sealed, "compaction")


def sign(prefix: str, model: str, words: str) -> str:
    """Return the signature of thinking ``words`` behind ``prefix``, a state of the chain."""
    return seal("thinking", prefix=prefix, model=model, words=digest(words.encode("utf-8", "replace")))


# -- the check ---------------------------------------------------------------------------------------------------------


def check_thinking(request: Request, blocks: Sequence[Block], settings: Settings) -> Checked | Refusal:
    """Return the thinking to drop, or the refusal of thinking that was changed or belongs to another history."""
    bound, latest = binds(request.model, settings), _latest(blocks)
    chain, left, dropped = Chain(), list[Block](), list[tuple[str, str]]()
    for at, block in enumerate(blocks):
        is_thinking = block.section == "messages" and block.kind in THINKING
        why = _fault(block, chain.state, request.model, at >= latest, bound, settings) if is_thinking else ""
        if isinstance(why, Refusal):
            return why
        if why and not _drops(request):
            return _refusal(block, _BOUND)
        if why:
            dropped.append((block.path, why))
        else:
            left.append(block)
            chain.add(block)
    return Checked(tuple(left), tuple(dropped))


def _drops(request: Request) -> bool:
    return bool(request.option("thinking", "block_binding", "prefix_mismatch_behavior") == "drop_block")


def _latest(blocks: Sequence[Block]) -> int:
    """Return where the latest assistant message begins."""
    at = len(blocks)
    while at and blocks[at - 1].role != "assistant":
        at -= 1
    while at and blocks[at - 1].role == "assistant":
        at -= 1
    return at


def _fault(block: Block, prefix: str, model: str, latest: bool, bound: bool, settings: Settings) -> Refusal | str:
    """Return the refusal of a block that is not as it was made, why it belongs elsewhere, or nothing.

    What a model that does not bind has signed may be replayed anywhere.
    """
    words, mark = (block.value.get(key) for key in THINKING[block.kind])
    about = unseal(mark, "thinking")
    if about is None:
        return "" if settings.seals == "any" else _refusal(block, _CORRUPT)
    if block.kind == "thinking" and about.get("words") != digest(str(words).encode("utf-8", "replace")):
        return _refusal(block, _MODIFIED if latest else _CORRUPT)
    if not (bound and binds(about.get("model", ""), settings)):
        return ""
    if not same_model(about.get("model", ""), model):
        return "model_mismatch"
    return "" if about.get("prefix") == prefix else "prefix_mismatch"


_CORRUPT = "Invalid `signature` in `thinking` block"
_BOUND = (
    "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set"
    ' `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
_MODIFIED = (
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must"
    " remain as they were in the original response."
)


def _refusal(block: Block, text: str) -> Refusal:
    return Refusal(400, "invalid_request_error", f"{block.path}: {text}")
