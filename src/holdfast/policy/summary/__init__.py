"""Summaries that a model writes: what it reads, what it is asked for, in how many parts, and what of it is taken."""
