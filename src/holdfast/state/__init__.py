"""Values: frozen, comparable, without identity, time or I/O."""
