"""Build the answers of the strict provider."""
