"""Pure questions about messages: no policy."""
