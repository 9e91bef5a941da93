"""One request, and everything it takes to get its answer into the log."""
