"""Summaries that a model writes: the text it reads, the prompts, the chunks of a long history, the check of its answer.

Nothing here sends a request; ``engine/compaction`` does.
"""
