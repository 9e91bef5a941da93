"""Search for words in a stored session."""
