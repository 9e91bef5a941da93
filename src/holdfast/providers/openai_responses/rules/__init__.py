"""The rules of Responses, as the validator proves them."""
