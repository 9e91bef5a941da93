"""What both APIs of OpenAI have in common."""
