"""What the strict provider answers."""
