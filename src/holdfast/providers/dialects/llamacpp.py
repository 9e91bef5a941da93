"""The server of llama.cpp, read in its source of autumn 2026."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.providers.dialects.provider_spec import ProviderRules, ProviderSpec
from holdfast.providers.dialects.requirements.fields import AllowedValues, ExclusiveFields, RefusedFields
from holdfast.providers.dialects.requirements.messages import LastMessage, NoNullContent, PartTypes
from holdfast.providers.dialects.requirements.requirement import Condition, Requirement
from holdfast.providers.dialects.requirements.tools import NoOldTools
from holdfast.providers.openai_chat.rules.request_view import ChatView
from holdfast.providers.rules.envelope import RequestView
from holdfast.providers.rules.rule import Violations

_MEDIA_TYPES = (
    "image/jpeg",
    "image/png",
    "image/gif",
    "image/webp",
    "image/bmp",
    "audio/mp3",
    "audio/mpeg",
    "audio/wav",
)
"""What can be sent as bytes; documents are refused."""
_SOURCE = "ggml-org/llama.cpp tools/server, autumn 2026"
_NO_CONTENT = f"{_SOURCE}: \"Assistant message must contain either 'content' or 'tool_calls'!\""


class SinglePrefill(Requirement, frozen=True, kw_only=True):
    """The messages do not end in two assistant messages: the last one is a beginning of the answer."""

    rule: ClassVar[str] = "two-answers"

    @property
    def text(self) -> str:
        """The rule in one sentence."""
        return "The last two messages are not both the assistant's."

    def list_dialect_changes(self) -> Mapping[str, Any]:
        """Adjacent messages of one role become one."""
        return {"merges_same_role": True}

    def find_violations(self, request: ChatView) -> Violations:
        """Yield the last message if the one before it is the assistant's too."""
        roles = [role for _, _, role in request.message_objects]
        if roles[-2:] == ["assistant", "assistant"]:
            index = request.message_objects[-1][0]
            yield f"$.messages[{index}]", "two assistant messages stand at the end; merge them into one"


def _thinks_by_template(request: RequestView) -> bool:
    return request.get_option("chat_template_kwargs", "enable_thinking") is True


def _streams_with_tools(request: RequestView) -> bool:
    return bool(request.get_list("tools")) and bool(request.body.get("stream"))


def _build_chat_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(
            SinglePrefill(source=_SOURCE),
            NoOldTools(source=_NO_CONTENT),
            NoNullContent(source=_NO_CONTENT),
            PartTypes(types=("text", "image_url", "input_audio"), source=f"{_SOURCE}: 'unsupported content[].type'"),
            LastMessage(
                when=Condition("while the chat template lets the model think", _thinks_by_template),
                source=f"{_SOURCE}: 'prefill is incompatible with enable_thinking'",
            ),
            ExclusiveFields(fields=("tools", "grammar"), source=f"{_SOURCE}: 'Cannot use custom grammar'"),
            AllowedValues(
                field="chat_template_kwargs.enable_thinking",
                values=(True, False),
                replacements={"true": True, "false": False},
                source=_SOURCE,
            ),
            RefusedFields(
                fields=("logprobs",),
                reason="it is refused in a stream with tools",
                when=Condition("in a stream with tools", _streams_with_tools),
                source=_SOURCE,
            ),
        ),
        dialect_changes={
            "media_types": _MEDIA_TYPES,
        },
        # A refusal is nowhere read, and an answer without content is refused.
        more_refused_kinds=("message.refusal",),
        skipped_rules=frozenset({"tool-schema", "tools", "stop", "images", "roles", "parts", "unknown-part"}),
    )


def _build_responses_rules(_model: str) -> ProviderRules:
    return ProviderRules(
        requirements=(
            RefusedFields(
                fields=("previous_response_id",), reason="llama.cpp keeps no history of its own", source=_SOURCE
            ),
        ),
    )


LLAMACPP = ProviderSpec(
    name="llamacpp",
    title="llama.cpp",
    rules_by_api={"openai-chat": _build_chat_rules, "openai-responses": _build_responses_rules},
    keeps_client_content=True,
)
