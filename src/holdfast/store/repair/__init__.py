"""Repairs a damaged store: rows checked in one transaction, a file that cannot be read copied row by row."""
