"""The parts of ``holdfast replay``: the report of a session, and the dump of its requests."""
