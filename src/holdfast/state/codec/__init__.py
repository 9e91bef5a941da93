"""Values of the state as bytes, and back."""
