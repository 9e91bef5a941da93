"""Messages and their parts as values, and questions about them that need no policy."""
