"""The SQLite file: opening it, its schema, its rows."""
