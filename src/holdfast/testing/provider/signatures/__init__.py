"""Data that only the provider can read or verify, and its memory of earlier answers."""
