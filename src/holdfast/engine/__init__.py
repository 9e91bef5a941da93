"""The running side: a session that is stored, and the one place that sends."""
