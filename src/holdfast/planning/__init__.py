"""Pure decisions: what a request should hold."""
