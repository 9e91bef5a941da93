"""The log of a stored session: append to it, and match a client's conversation against it."""
