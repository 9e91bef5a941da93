"""Classify the errors and odd answers of providers, and render errors in the wording of each API."""
