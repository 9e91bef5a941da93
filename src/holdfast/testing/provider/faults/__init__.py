"""What goes wrong on purpose, and what is said then."""
