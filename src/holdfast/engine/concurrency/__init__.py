"""What runs one at a time, and in which thread."""
