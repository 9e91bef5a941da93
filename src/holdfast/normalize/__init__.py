"""Makes a history valid for one request: pairing, order, ids, thinking, media. Done anew for each, never stored."""
