"""Everything that one request takes until its answer is in the log."""
