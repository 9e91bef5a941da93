"""The fold over the entries of a log: the state before an entry and the entry make the state after it."""
