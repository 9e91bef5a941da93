"""Whether a request may pass, and how it is refused."""
