"""Effects, synchronous: where entries and blobs live."""
