"""The rules of every API: what they are made of, and the validator that judges a request by them."""
