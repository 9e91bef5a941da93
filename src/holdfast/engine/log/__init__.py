"""The log of a stored session: what is appended, and how an incoming conversation is matched against it."""
