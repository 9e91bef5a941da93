"""The strict provider over HTTP."""
