"""Request bodies of every API: recognized, parsed into sized messages without losing a byte, and built."""
