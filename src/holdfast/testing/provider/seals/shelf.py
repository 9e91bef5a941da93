"""What a server of Responses knows of earlier answers: their items, and which item followed which reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.testing.provider.blocks import Block, items
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.reading import Request
from holdfast.testing.provider.seals.sealing import seal, unseal
from holdfast.testing.provider.seals.signing import Chain, Checked, same_model
from holdfast.testing.provider.settings import Settings


class Kept(Struct, frozen=True):
    """An item that an answer had."""

    item: dict[str, Any]
    stored: bool
    """Whether it may be named by its id (``store``)."""
    reasoning: dict[str, Any] | None = None
    """The reasoning right before it."""


class Shelf:
    """The items and answers of one server. ``items`` by their id, ``answers`` by theirs."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.items: dict[str, Kept] = {}
        self.answers: dict[str, list[dict[str, Any]]] = {}

    def whole(self, request: Request) -> Request | Refusal:
        """Return the request with what it only names put in its place: earlier answers and single items."""
        history = self._history(request)
        if isinstance(history, Refusal):
            return history
        given, stored = request.body.get("input"), request.body.get("store") is not False
        if not isinstance(given, str | list | None) or not (history or _names(given)):
            return request
        found = [*history, *items(given)]
        for at, item in enumerate(found):
            if item.get("type") == "item_reference":
                kept = self.items.get(str(item.get("id")))
                if kept is None or not kept.stored:
                    return _not_found(str(item.get("id")), stored=stored)
                found[at] = kept.item
        named = ("previous_response_id", "conversation")
        body = {key: value for key, value in request.body.items() if key not in named}
        return msgspec.structs.replace(request, body={**body, "input": found}, completed=True)

    def _history(self, request: Request) -> list[dict[str, Any]] | Refusal:
        """Return the items that a request goes on from, or the refusal of an answer nobody knows."""
        previous = request.body.get("previous_response_id")
        if previous is not None and request.conversation:
            text = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
            return Refusal(400, "mutually_exclusive_parameters", text)
        if previous is not None and str(previous) not in self.answers:
            text = f"Previous response with id '{previous}' not found."
            return Refusal(400, "previous_response_not_found", text, details={"param": "previous_response_id"})
        if previous is None:
            return self.answers.get(request.conversation, [])
        return self.answers[str(previous)]

    def check(self, request: Request, blocks: Sequence[Block], settings: Settings) -> Checked | Refusal:
        """Return the reasoning that is left out, or the refusal of items that do not fit what the server knows."""
        chain, left, dropped = Chain(), list[Block](), list[tuple[str, str]]()
        before: list[dict[str, Any]] = []
        for block in blocks:
            fault = self._fault(block.value, before, request, settings) if block.section == "messages" else None
            if fault is not None:
                return fault
            why = _elsewhere(block, chain.state, request.model)
            before += [block.value] if block.section == "messages" else []
            if why:
                dropped.append((str(block.value.get("id", "")), why))
            else:
                left.append(block)
                chain.add(block)
        return Checked(tuple(left), tuple(dropped))

    def _fault(
        self, item: dict[str, Any], before: list[dict[str, Any]], request: Request, settings: Settings
    ) -> Refusal | None:
        id_, kind = str(item.get("id", "")), item.get("type")
        kept = self.items.get(id_)
        if kind in _SEALED and item.get("encrypted_content") is not None:
            return None if _readable(item, settings) else _corrupt(str(item["encrypted_content"]))
        if kind == "reasoning" and settings.seals == "own" and not (kept is not None and kept.stored):
            return _not_found(id_, stored=request.body.get("store") is not False)
        if kept is not None and kept.reasoning is not None and not any(_same(kept.reasoning, one) for one in before):
            text = f"Item '{id_}' of type '{kind}' was provided without its required 'reasoning' item:"
            return Refusal(400, "", f"{text} '{kept.reasoning.get('id')}'.", details={"param": "input"})
        return None

    def keep(self, id_: str, request: Request, made: Iterable[dict[str, Any]]) -> None:
        """Remember an answer: its items, what they followed, and the history it stands in."""
        stored, reasoning = request.body.get("store") is not False, None
        out = list(made)
        for item in out:
            self.items[str(item.get("id"))] = Kept(item, stored, reasoning)
            reasoning = item if item.get("type") == "reasoning" else None
        if stored:
            self.answers[id_] = [*items(request.body.get("input")), *out]
            if request.conversation:
                self.answers[request.conversation] = self.answers[id_]


_SEALED = ("reasoning", "compaction", "compaction_summary")


def _names(given: object) -> bool:
    return any(item.get("type") == "item_reference" for item in items(given))


def _same(kept: dict[str, Any], item: dict[str, Any]) -> bool:
    """Return whether ``item`` is the reasoning that was kept, by its id or its content."""
    return item.get("type") == "reasoning" and any(
        item.get(key) is not None and item.get(key) == kept.get(key) for key in ("id", "encrypted_content")
    )


def _readable(item: dict[str, Any], settings: Settings) -> bool:
    kind = "reasoning" if item.get("type") == "reasoning" else "compaction"
    return settings.seals == "any" or unseal(item["encrypted_content"], kind) is not None


def _elsewhere(block: Block, prefix: str, model: str) -> str:
    """Return why the model does not read this reasoning, or nothing when it does."""
    about = unseal(block.value.get("encrypted_content"), "reasoning") if block.kind == "reasoning" else None
    if about is None:
        return ""
    if not same_model(about.get("model", ""), model):
        return "model_mismatch"
    return "" if about.get("prefix") == prefix else "prefix_mismatch"


def encrypt(prefix: str, model: str, words: str) -> str:
    """Return reasoning that only the provider reads, behind ``prefix``, a state of the chain."""
    return seal("reasoning", prefix=prefix, model=model, words=words)


def _not_found(id_: str, *, stored: bool) -> Refusal:
    text = f"Item with id '{id_}' not found."
    if not stored:
        text += (
            " Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this"
            " item from your input."
        )
    return Refusal(404, "", text, details={"param": "input"})


def _corrupt(content: str) -> Refusal:
    text = f"The encrypted content {content[:4]}...{content[-4:]} could not be verified."
    reason = "Reason: Encrypted content could not be decrypted or parsed."
    return Refusal(400, "invalid_encrypted_content", f"{text} {reason}")
