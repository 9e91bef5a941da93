"""Wordings of providers about a broken rule, by the rule's name, from their errors and documents.

In a wording ``path`` is the path in the API's notation, ``value`` the value there, ``id`` that of the item or block
around it, ``at`` the index of the message; ``refusals`` fills in these and further fields.
"""

from __future__ import annotations

RULE_WORDINGS: dict[str, str] = {
    # -- Anthropic ---------------------------------------------------------------------------------------------------
    "anthropic.messages": "messages: at least one message is required",
    "anthropic.strict": "{path}: Extra inputs are not permitted",
    "anthropic.first-user": 'messages: first message must use the "user" role',
    "anthropic.content-nonempty": (
        "messages.{at}: all messages must have non-empty content except for the optional final assistant message"
    ),
    "anthropic.system-support": "role 'system' is not supported on this model",
    "anthropic.system-place": "messages.{at}: role 'system' must precede an 'assistant' message or end the array",
    "anthropic.orphan": (
        "{block}: unexpected `tool_use_id` found in `tool_result` blocks: {value}. Each `tool_result` block must have"
        " a corresponding `tool_use` block in the previous message."
    ),
    "anthropic.one-result": (
        "{block}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {value}"
    ),
    "anthropic.unique-ids": "messages: `tool_use` ids must be unique",
    "anthropic.id-pattern": "{path}: String should match pattern '^[a-zA-Z0-9_-]+$'",
    "anthropic.name-pattern": "{path}: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
    "anthropic.input-object": "{path}: Input should be a valid dictionary",
    "anthropic.text-nonempty": "messages: text content blocks must be non-empty",
    "anthropic.text-nonblank": "messages: text content blocks must contain non-whitespace text",
    "anthropic.trailing-space": "messages: final assistant content cannot end with trailing whitespace",
    "anthropic.prefill": (
        "This model does not support assistant message prefill. The conversation must end with a user message."
    ),
    "anthropic.thinking-sealed": "{path}: Field required",
    "anthropic.thinking-first": (
        "{path}: Expected `thinking` or `redacted_thinking`, but found `{value}`. When `thinking` is enabled, a final"
        " `assistant` message must start with a thinking block"
    ),
    "anthropic.binding-beta": (
        "`thinking.block_binding` requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta`"
        " header"
    ),
    "anthropic.media-type": "{path}: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
    "anthropic.deferred-cache": "Tools with defer_loading cannot use prompt caching",
    "anthropic.deferred-all": "At least one tool must have defer_loading=false",
    "anthropic.forced-tool": 'tool_choice: type "tool" and "any" are not supported for this model',
    "anthropic.model-sampling": "`{path}` is deprecated for this model.",
    "anthropic.edit-order": "clear_thinking_20251015 must be the first edit",
    "anthropic.edit-trigger": "{path}: trigger.value must be at least 50000",
    "anthropic.compaction-first": "compaction block is not the first block of the conversation",
    "anthropic.compaction-single": "more than one compaction block with content",
    "anthropic.compaction-turn": "the compaction request ends on an assistant turn that is not finished",
    "anthropic.compaction-something": "there is nothing to summarize",
    "anthropic.compaction-exclusive": "compaction cannot be combined with {path}",
    # -- Chat Completions --------------------------------------------------------------------------------------------
    "openai-chat.orphan": (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
    ),
    "openai-chat.call-name": (
        "Invalid '{path}': string does not match pattern. Expected a string that matches the pattern"
        " '^[a-zA-Z0-9_-]+$'."
    ),
    "openai-chat.model-sampling": "Unsupported parameter: '{path}' is not supported with this model.",
    "openai-chat.cache-retention": "This model is compatible only with 24h extended prompt caching",
    # -- Responses ---------------------------------------------------------------------------------------------------
    "openai-responses.model-sampling": "Unsupported parameter: '{path}' is not supported with this model.",
    "openai-responses.cache-retention": "This model is compatible only with 24h extended prompt caching",
    "openai-responses.output-fields": "Unknown parameter: '{path}'.",
    "openai-responses.reasoning-status": "Unknown parameter: '{path}'.",
    "openai-responses.search-action": (
        "Invalid value: '{value}'. Supported values are: 'search', 'open_page', and 'find_in_page'."
    ),
    "openai-responses.image-result": (
        "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with"
        " `store` set to true, or remove this item from your input."
    ),
    "openai-responses.pair": "No tool output found for {call} {value}.",
    "openai-responses.orphan": "No tool call found for {call} output with call_id {value}.",
    "openai-responses.reasoning-unit": (
        "Item '{id}' of type 'reasoning' was provided without its required following item."
    ),
    "openai-responses.unique-ids": (
        "Duplicate item found with id {value}. Remove duplicate items from your input and try again."
    ),
    "openai-responses.trigger-last": "compaction_trigger must be the final input item",
    "openai-responses.context-management": (
        "Invalid '{path}': integer below minimum value. Expected a value >= 1000, but got {value} instead."
    ),
    "openai-responses.history": "Mutually exclusive parameters: 'previous_response_id' and 'conversation'.",
    # -- Gemini ------------------------------------------------------------------------------------------------------
    "gemini.contents": "* GenerateContentRequest.contents: contents is not specified",
    "gemini.roles": "Please use a valid role: user, model.",
    "gemini.one-data": (
        "* GenerateContentRequest.{path}.data: required oneof field 'data' must have one initialized field"
    ),
    "gemini.text-nonempty": (
        "* GenerateContentRequest.{path}.data: required oneof field 'data' must have one initialized field"
    ),
    "gemini.last-user": "Please ensure that multiturn requests end with a user turn or a function response.",
    "gemini.call-count": (
        "Please ensure that the number of function response parts is equal to the number of function call parts of the"
        " function call turn."
    ),
    "gemini.call-place": (
        "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
    ),
    "gemini.response-place": "Please ensure that function response turn comes immediately after a function call turn.",
    "gemini.response-object": "Invalid value at '{path}' (type.googleapis.com/google.protobuf.Struct), {value!r}",
    "gemini.args-object": "Invalid value at '{path}' (type.googleapis.com/google.protobuf.Struct), {value!r}",
    "gemini.server-side-tools": (
        "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function calling."
    ),
    "gemini.thinking-level": "Thinking level {value} is not supported for this model.",
    "gemini.tool-schema": "* GenerateContentRequest.{path}: {words}",
    "gemini.signed": (
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work"
        " correctly, and missing thought_signature may lead to degraded model performance. Additional data, function"
        " call `default_api:{name}` , position {position}. Please refer to"
        " https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
    ),
}
"""Texts about the first place where a rule is broken."""

ANTHROPIC_ERROR_CODES: dict[str, str] = {
    "anthropic.compaction-first": "compaction_block_misplaced",
    "anthropic.compaction-single": "compaction_block_ambiguous",
    "anthropic.compaction-turn": "compaction_incomplete_turn",
    "anthropic.compaction-something": "compaction_nothing_to_summarize",
    "anthropic.tool-reference": "tool_reference_unresolved",
}
"""``error_code`` by rule, for the errors of Anthropic that have one (compaction page)."""

OPENAI_ERROR_CODES: dict[str, str] = {
    "openai-chat.orphan": "",
    "openai-chat.pair": "",
    "openai-responses.pair": "",
    "openai-responses.orphan": "",
    "openai-responses.reasoning-unit": "",
    "openai-responses.unique-ids": "",
    "openai-chat.model-sampling": "unsupported_parameter",
    "openai-chat.model-effort": "unsupported_value",
    "openai-chat.model-tools": "",
    "openai-chat.cache-retention": "invalid_parameter",
    "openai-responses.model-sampling": "unsupported_parameter",
    "openai-responses.model-effort": "unsupported_value",
    "openai-responses.cache-retention": "invalid_parameter",
    "openai-responses.output-fields": "unknown_parameter",
    "openai-responses.reasoning-status": "unknown_parameter",
    "openai-responses.image-result": "",
    "openai-responses.history": "mutually_exclusive_parameters",
    "openai-responses.context-management": "integer_below_min_value",
}
"""``code`` of OpenAI's errors by rule, where it is not ``invalid_value``; empty for null."""
