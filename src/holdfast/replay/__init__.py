"""Policies compared on recorded sessions."""
