"""Summaries made from the log by quoting it, without calling a model."""
