"""Summaries that are made without a model, from what the log says."""
