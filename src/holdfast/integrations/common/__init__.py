"""What the adapters share: one conversation of an agent, and what its model is shown of it."""
