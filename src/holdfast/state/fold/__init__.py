"""The fold over the entries of a log: it computes the state after an entry from the state before it."""
