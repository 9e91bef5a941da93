"""The rules of Chat Completions, as the validator proves them."""
