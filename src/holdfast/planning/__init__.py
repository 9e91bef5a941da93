"""Planning: pure functions that decide what the next request shows, without I/O, waiting or a clock."""
