"""Read, replace and write JSON in pieces, so that untouched pieces keep their bytes."""
