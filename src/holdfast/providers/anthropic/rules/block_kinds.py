"""Kinds of blocks in the Messages API with their fields, and questions that several rules ask."""

from __future__ import annotations

from holdfast.providers.anthropic.rules.request_view import AnthropicView, BlockView

SERVER_CALL_KINDS = ("server_tool_use", "mcp_tool_use")
THINKING_BLOCK_KINDS = ("thinking", "redacted_thinking")
FOREIGN_BLOCK_KINDS = frozenset(
    {"image_url", "input_text", "output_text", "input_image", "input_audio", "input_file", "file", "refusal",
     "reasoning", "function", "function_call", "function_call_output", "tool_call", "toolCall", "toolResult"}
)  # fmt: skip
"""Part types of other APIs, which a converter may have left behind."""
FIELDS_BY_BLOCK_KIND: dict[str, frozenset[str]] = {
    kind: frozenset({"type", *keys.split()})
    for kind, keys in {
        "text": "text cache_control citations",
        "image": "source cache_control transformations",
        "document": "source cache_control citations context title",
        "search_result": "content source title cache_control citations",
        "thinking": "thinking signature",
        "redacted_thinking": "data",
        "tool_use": "id name input cache_control caller toolset_name",
        "tool_result": "tool_use_id content is_error cache_control toolset_name",
        "server_tool_use": "id name input cache_control caller",
        "mcp_tool_use": "id name input server_name cache_control",
        "mcp_tool_result": "tool_use_id content is_error cache_control",
        "web_search_tool_result": "tool_use_id content cache_control caller",
        "web_fetch_tool_result": "tool_use_id content cache_control caller",
        "advisor_tool_result": "tool_use_id content cache_control",
        "code_execution_tool_result": "tool_use_id content cache_control",
        "bash_code_execution_tool_result": "tool_use_id content cache_control",
        "text_editor_code_execution_tool_result": "tool_use_id content cache_control",
        "tool_search_tool_result": "tool_use_id content cache_control",
        "container_upload": "file_id cache_control",
        "compaction": "content encrypted_content signature tool_changes cache_control",
        "tool_addition": "tool cache_control",
        "tool_removal": "tool cache_control",
        "tool_reference": "tool_name cache_control",
        "browser_state": "tabs state_changes cache_control",
        "mcp_tool_listing": "mcp_server_name tools",
        "fallback": "to trigger from",
    }.items()
}
"""Block types and their fields, from the types of the official SDK 2.12."""
SERVER_RESULT_KINDS = frozenset(kind for kind in FIELDS_BY_BLOCK_KIND if kind.endswith("_tool_result"))
"""Results of server tools, which belong to the assistant's message."""


def get_block_id(block: BlockView, key: str = "tool_use_id") -> str:
    """Return the id that a block has under ``key``, converted to text."""
    return str(block.value.get(key))


def is_paused_turn(request: AnthropicView) -> bool:
    """Return whether the request resends an assistant turn that a server tool or a compaction interrupted.

    Such a request may end with the assistant: the model goes on from there (``pause_turn``).
    """
    turn = request.turns[-1] if request.turns else None
    if turn is None or turn.role != "assistant" or not turn.blocks:
        return False
    kind = turn.blocks[-1].kind
    return kind in SERVER_CALL_KINDS or kind in SERVER_RESULT_KINDS or kind == "compaction"
