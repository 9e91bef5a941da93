"""Check requests to the strict provider, and word their refusals."""
