"""The memory of a Responses server: the items of earlier answers, and which item followed which reasoning."""

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
    """An item of an earlier answer."""

    item: dict[str, Any]
    is_stored: bool
    """Whether requests may refer to it by its id (``store``)."""
    reasoning: dict[str, Any] | None = None
    """The reasoning item right before it, which has to come back with it."""


class ResponseStore:
    """The items and answers of one server."""

    def __init__(self) -> None:
        self.items: dict[str, ResponseStoreItem] = {}
        """Items by their id; those that are not stored too, to check what comes back."""
        self.answers: dict[str, list[dict[str, Any]]] = {}
        """The whole history up to and including an answer, by its id and by the id of its conversation."""

    def resolve_references(self, request: ProviderRequest) -> ProviderRequest | RefusalReply:
        """Replace the references in a request to earlier answers and single items by the items themselves.

        Returns the refusal if a reference is unknown, and the same request if it has no references.
        """
        history = self._get_history(request)
        if isinstance(history, RefusalReply):
            return history
        request_input = request.body.get("input")
        has_references = bool(history) or _has_item_references(request_input)
        if not isinstance(request_input, str | list | None) or not has_references:
            return request
        items = [*history, *get_input_items(request_input)]
        for index, item in enumerate(items):
            if item.get("type") == "item_reference":
                item_id = str(item.get("id"))
                stored_item = self.items.get(item_id)
                if stored_item is None or not stored_item.is_stored:
                    return _refuse_unknown_item(item_id, is_stored=request.body.get("store") is not False)
                items[index] = stored_item.item
        reference_fields = ("previous_response_id", "conversation")
        body = {key: value for key, value in request.body.items() if key not in reference_fields}
        return msgspec.structs.replace(request, body={**body, "input": items}, is_completed=True)

    def _get_history(self, request: ProviderRequest) -> list[dict[str, Any]] | RefusalReply:
        """Return the stored items that a request continues, or the refusal of an unknown answer."""
        previous = request.body.get("previous_response_id")
        if previous is not None and request.conversation:
            text = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
            return RefusalReply(400, "mutually_exclusive_parameters", text)
        if previous is not None and str(previous) not in self.answers:
            text = f"Previous response with id '{previous}' not found."
            return RefusalReply(
                400,
                "previous_response_not_found",
                text,
                details={"param": "previous_response_id"},
            )
        if previous is None:
            return self.answers.get(request.conversation, [])
        return self.answers[str(previous)]

    def check_items(
        self,
        request: ProviderRequest,
        blocks: Sequence[PromptBlock],
        settings: ProviderSettings,
    ) -> HistoryCheck | RefusalReply:
        """Check the items of a request against those that this server made.

        Returns the history without reasoning that was made for another one, or the refusal of items that do not match.
        """
        history = HistoryDigest()
        kept_blocks: list[PromptBlock] = []
        dropped_blocks: list[tuple[str, str]] = []
        earlier_items: list[dict[str, Any]] = []
        for block in blocks:
            if block.section == "messages":
                refusal = self._check_item(block.value, earlier_items, request, settings)
                if refusal is not None:
                    return refusal
                earlier_items.append(block.value)
            # Unlike Anthropic, OpenAI drops foreign reasoning silently and reports it in the response.
            mismatch = _explain_mismatch(block, history.state, request.model)
            if mismatch:
                dropped_blocks.append((str(block.value.get("id", "")), mismatch))
            else:
                kept_blocks.append(block)
                history.add_block(block)
        return HistoryCheck(tuple(kept_blocks), tuple(dropped_blocks))

    def _check_item(
        self,
        item: dict[str, Any],
        earlier_items: list[dict[str, Any]],
        request: ProviderRequest,
        settings: ProviderSettings,
    ) -> RefusalReply | None:
        """Return the refusal of ``item``, or None if the server accepts it.

        An item is refused if its encrypted content was not made by a provider, if it is reasoning without that content
        which this server did not store, or if it is an item of an earlier answer without the reasoning before it.
        """
        item_id = str(item.get("id", ""))
        item_type = item.get("type")
        if item_type in _SIGNED_ITEM_TYPES and item.get("encrypted_content") is not None:
            if _is_readable(item, settings):
                return None
            return _refuse_corrupt_content(str(item["encrypted_content"]))
        known_item = self.items.get(item_id)
        # Reasoning without its encrypted content is only an id, so the server must have stored the item.
        is_stored = known_item is not None and known_item.is_stored
        if item_type == "reasoning" and settings.accepted_seals == "own" and not is_stored:
            return _refuse_unknown_item(item_id, is_stored=request.body.get("store") is not False)
        required_reasoning = known_item.reasoning if known_item is not None else None
        if required_reasoning is None:
            return None
        if any(_is_same_reasoning(required_reasoning, earlier_item) for earlier_item in earlier_items):
            return None
        text = f"Item '{item_id}' of type '{item_type}' was provided without its required 'reasoning' item:"
        return RefusalReply(
            400,
            "",
            f"{text} '{required_reasoning.get('id')}'.",
            details={"param": "input"},
        )

    def store_answer(
        self,
        id_: str,
        request: ProviderRequest,
        output_items: Iterable[dict[str, Any]],
    ) -> None:
        """Store an answer: its items, the reasoning that each of them followed, and the history up to it."""
        is_stored = request.body.get("store") is not False
        items = list(output_items)
        reasoning = None
        for item in items:
            self.items[str(item.get("id"))] = ResponseStoreItem(item, is_stored, reasoning)
            reasoning = item if item.get("type") == "reasoning" else None
        if is_stored:
            self.answers[id_] = [*get_input_items(request.body.get("input")), *items]
            if request.conversation:
                self.answers[request.conversation] = self.answers[id_]


_SIGNED_ITEM_TYPES = ("reasoning", "compaction", "compaction_summary")


def _has_item_references(input_items: object) -> bool:
    return any(item.get("type") == "item_reference" for item in get_input_items(input_items))


def _is_same_reasoning(stored_item: dict[str, Any], item: dict[str, Any]) -> bool:
    """Return whether ``item`` is the stored reasoning, by its id or its encrypted content."""
    if item.get("type") != "reasoning":
        return False
    for key in ("id", "encrypted_content"):
        if item.get(key) is not None and item.get(key) == stored_item.get(key):
            return True
    return False


def _is_readable(item: dict[str, Any], settings: ProviderSettings) -> bool:
    kind = "reasoning" if item.get("type") == "reasoning" else "compaction"
    return settings.accepted_seals == "any" or open_provider_signature(item["encrypted_content"], kind) is not None


def _explain_mismatch(block: PromptBlock, prefix: str, model: str) -> str:
    """Return the reason why a block is reasoning of another model or history, or an empty string."""
    if block.kind != "reasoning":
        return ""
    signed_fields = open_provider_signature(block.value.get("encrypted_content"), "reasoning")
    if signed_fields is None:
        return ""
    if not is_same_model_name(signed_fields.get("model", ""), model):
        return "model_mismatch"
    return "" if signed_fields.get("prefix") == prefix else "prefix_mismatch"


def encrypt_reasoning(prefix: str, model: str, words: str) -> str:
    """Encrypt the reasoning ``words`` of ``model``, after the history with the digest ``prefix``."""
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
