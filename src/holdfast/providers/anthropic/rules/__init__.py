"""The rules of Anthropic Messages, as the validator proves them."""
