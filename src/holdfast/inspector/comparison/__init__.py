"""Policies compared on one session: the question, the process that replays, and what the pages know of it."""
