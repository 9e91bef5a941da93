"""Kinds of content that a message may hold in any API, in the words that findings and notes use for them."""

CALL_KIND, RESULT_KIND, THINKING_KIND = "call of a tool", "result of a tool", "thinking"
TEXT_KIND, BUILT_IN_CALL_KIND = "text", "call of a built-in tool"
PICTURE_KIND, DOCUMENT_KIND, SOUND_KIND = "picture", "document", "sound"
REFUSAL_KIND, MESSAGE_KIND, TOOL_KIND = "refusal", "message", "tool"
