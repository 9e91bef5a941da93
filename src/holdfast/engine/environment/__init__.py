"""What an agent works in: its folder, its skills, its system prompt."""
