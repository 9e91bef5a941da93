"""How each client says that work in the background starts and ends, one file a client."""
