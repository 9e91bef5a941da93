"""Compaction with what the planner cannot do: models, hooks, the provider's own endpoint."""
