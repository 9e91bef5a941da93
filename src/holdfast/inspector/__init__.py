"""The web pages that show sessions: what the model saw of each, what was reduced, and what it cost."""
