"""The store in a PostgreSQL database: many processes and machines use it, each session has one writer at a time."""
