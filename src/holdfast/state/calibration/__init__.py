"""What providers reported about sizes, and what that teaches about our estimates."""
