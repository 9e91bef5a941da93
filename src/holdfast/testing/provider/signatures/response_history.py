"""What a server of Responses knows of earlier answers: their items, and which item followed which reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock, get_input_items
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.anthropic_thinking import HistoryCheck, HistoryDigest, is_same_model_name
from holdfast.testing.provider.signatures.opaque_texts import make_provider_signature, open_provider_signature


class ResponseStoreItem(Struct, frozen=True):
    """An item that an answer had."""

    item: dict[str, Any]
    is_stored: bool
    """Whether it may be named by its id (``store``)."""
    reasoning: dict[str, Any] | None = None
    """The reasoning right before it."""


class ResponseStore:
    """The items and answers of one server. ``items`` by their id, ``answers`` by theirs."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.items: dict[str, ResponseStoreItem] = {}
        self.answers: dict[str, list[dict[str, Any]]] = {}

    def resolve_references(self, request: ProviderRequest) -> ProviderRequest | RefusalReply:
        """Return the request with what it only names put in its place: earlier answers and single items."""
        history = self._get_history(request)
        if isinstance(history, RefusalReply):
            return history
        input_items, is_stored = request.body.get("input"), request.body.get("store") is not False
        if not isinstance(input_items, str | list | None) or not (history or _has_item_references(input_items)):
            return request
        whole_input = [*history, *get_input_items(input_items)]
        for at, item in enumerate(whole_input):
            if item.get("type") == "item_reference":
                stored_item = self.items.get(str(item.get("id")))
                if stored_item is None or not stored_item.is_stored:
                    return _refuse_unknown_item(str(item.get("id")), is_stored=is_stored)
                whole_input[at] = stored_item.item
        reference_fields = ("previous_response_id", "conversation")
        body = {key: value for key, value in request.body.items() if key not in reference_fields}
        return msgspec.structs.replace(request, body={**body, "input": whole_input}, is_completed=True)

    def _get_history(self, request: ProviderRequest) -> list[dict[str, Any]] | RefusalReply:
        """Return the items that a request goes on from, or the refusal of an answer nobody knows."""
        previous = request.body.get("previous_response_id")
        if previous is not None and request.conversation:
            text = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
            return RefusalReply(400, "mutually_exclusive_parameters", text)
        if previous is not None and str(previous) not in self.answers:
            text = f"Previous response with id '{previous}' not found."
            return RefusalReply(400, "previous_response_not_found", text, details={"param": "previous_response_id"})
        if previous is None:
            return self.answers.get(request.conversation, [])
        return self.answers[str(previous)]

    def check_items(
        self, request: ProviderRequest, blocks: Sequence[PromptBlock], settings: ProviderSettings
    ) -> HistoryCheck | RefusalReply:
        """Return the reasoning that is left out, or the refusal of items that do not fit what the server knows."""
        chain, kept_blocks, dropped_blocks = HistoryDigest(), list[PromptBlock](), list[tuple[str, str]]()
        before: list[dict[str, Any]] = []
        for block in blocks:
            fault = self._check_item(block.value, before, request, settings) if block.section == "messages" else None
            if fault is not None:
                return fault
            why = _explain_mismatch(block, chain.state, request.model)
            before += [block.value] if block.section == "messages" else []
            if why:
                dropped_blocks.append((str(block.value.get("id", "")), why))
            else:
                kept_blocks.append(block)
                chain.add_block(block)
        return HistoryCheck(tuple(kept_blocks), tuple(dropped_blocks))

    def _check_item(
        self,
        item: dict[str, Any],
        earlier_items: list[dict[str, Any]],
        request: ProviderRequest,
        settings: ProviderSettings,
    ) -> RefusalReply | None:
        id_, kind = str(item.get("id", "")), item.get("type")
        stored_item = self.items.get(id_)
        if kind in _SEALED_TYPES and item.get("encrypted_content") is not None:
            return None if _is_readable(item, settings) else _refuse_corrupt_content(str(item["encrypted_content"]))
        if (
            kind == "reasoning"
            and settings.accepted_seals == "own"
            and not (stored_item is not None and stored_item.is_stored)
        ):
            return _refuse_unknown_item(id_, is_stored=request.body.get("store") is not False)
        if (
            stored_item is not None
            and stored_item.reasoning is not None
            and not any(_is_same_reasoning(stored_item.reasoning, earlier_item) for earlier_item in earlier_items)
        ):
            text = f"Item '{id_}' of type '{kind}' was provided without its required 'reasoning' item:"
            return RefusalReply(400, "", f"{text} '{stored_item.reasoning.get('id')}'.", details={"param": "input"})
        return None

    def store_answer(self, id_: str, request: ProviderRequest, output_items: Iterable[dict[str, Any]]) -> None:
        """Remember an answer: its items, what they followed, and the history it stands in."""
        is_stored, reasoning = request.body.get("store") is not False, None
        out = list(output_items)
        for item in out:
            self.items[str(item.get("id"))] = ResponseStoreItem(item, is_stored, reasoning)
            reasoning = item if item.get("type") == "reasoning" else None
        if is_stored:
            self.answers[id_] = [*get_input_items(request.body.get("input")), *out]
            if request.conversation:
                self.answers[request.conversation] = self.answers[id_]


_SEALED_TYPES = ("reasoning", "compaction", "compaction_summary")


def _has_item_references(input_items: object) -> bool:
    return any(item.get("type") == "item_reference" for item in get_input_items(input_items))


def _is_same_reasoning(stored_item: dict[str, Any], item: dict[str, Any]) -> bool:
    """Return whether ``item`` is the reasoning that was kept, by its id or its content."""
    return item.get("type") == "reasoning" and any(
        item.get(key) is not None and item.get(key) == stored_item.get(key) for key in ("id", "encrypted_content")
    )


def _is_readable(item: dict[str, Any], settings: ProviderSettings) -> bool:
    kind = "reasoning" if item.get("type") == "reasoning" else "compaction"
    return settings.accepted_seals == "any" or open_provider_signature(item["encrypted_content"], kind) is not None


def _explain_mismatch(block: PromptBlock, prefix: str, model: str) -> str:
    """Return why the model does not read this reasoning, or nothing when it does."""
    about = (
        open_provider_signature(block.value.get("encrypted_content"), "reasoning")
        if block.kind == "reasoning"
        else None
    )
    if about is None:
        return ""
    if not is_same_model_name(about.get("model", ""), model):
        return "model_mismatch"
    return "" if about.get("prefix") == prefix else "prefix_mismatch"


def encrypt_reasoning(prefix: str, model: str, words: str) -> str:
    """Return reasoning that only the provider reads, behind ``prefix``, a state of the chain."""
    return make_provider_signature("reasoning", prefix=prefix, model=model, words=words)


def _refuse_unknown_item(id_: str, *, is_stored: bool) -> RefusalReply:
    text = f"Item with id '{id_}' not found."
    if not is_stored:
        text += (
            " Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this"
            " item from your input."
        )
    return RefusalReply(404, "", text, details={"param": "input"})


def _refuse_corrupt_content(content: str) -> RefusalReply:
    text = f"The encrypted content {content[:4]}...{content[-4:]} could not be verified."
    reason = "Reason: Encrypted content could not be decrypted or parsed."
    return RefusalReply(400, "invalid_encrypted_content", f"{text} {reason}")
