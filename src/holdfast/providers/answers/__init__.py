"""Parse answers of each API, from a body or a stream: message, stop reason, usage and error."""
