"""Summaries that a model writes: what it reads, what it is asked for, in how many parts, and what of it is taken.

``openclaw``, ``openclaw_chunks``, ``openclaw_turns``, ``opencode`` and ``pi`` hold how those tools do it, for their
worked cases (``docs/presets.md``); nothing else runs them.
"""
