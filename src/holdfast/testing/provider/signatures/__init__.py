"""What only the provider can read, and what it knows of earlier answers."""
