"""Lanes, permits, and the worker thread that uses the store."""
