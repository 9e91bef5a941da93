"""Serve the strict provider over HTTP."""
