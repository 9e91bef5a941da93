"""Encode entries and states as bytes, and decode them."""
