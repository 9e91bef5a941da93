"""Sessions in the database of OpenClaw."""
