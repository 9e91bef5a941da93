"""What an answer says: message, history, reason, usage and error, from a body or a stream of each API."""
