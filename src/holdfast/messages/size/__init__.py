"""How large the content of messages is: in tokens, in weighted characters, in pixels."""
