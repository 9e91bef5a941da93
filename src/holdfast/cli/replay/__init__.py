"""The parts of ``holdfast replay``: the report of a session, and the requests written to files."""
