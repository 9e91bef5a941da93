"""Pruning: old tool results become a one-line placeholder. ``prune_at_epoch`` is the rule of our own policy."""
