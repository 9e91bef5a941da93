"""Decide what to do after a provider refused a request. No I/O."""
