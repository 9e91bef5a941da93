"""Finding words in a stored session."""
