"""Compare policies on recorded sessions. METRICS.md defines each figure; "METRICS" below refers to it."""
