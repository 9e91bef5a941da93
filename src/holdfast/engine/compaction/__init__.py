"""Compaction with steps that the planner cannot take: models, hooks, and the provider's own compaction."""
