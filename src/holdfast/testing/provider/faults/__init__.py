"""Faults that strike on purpose, and the replies that they cause."""
