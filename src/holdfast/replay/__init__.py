"""Compare policies on recorded sessions. docs/metrics.md defines each figure."""
