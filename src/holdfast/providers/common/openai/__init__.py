"""Parts that Chat Completions and Responses share."""
