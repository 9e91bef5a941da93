"""Texts stored under the hash of their bytes, and read page by page."""
