"""What the log of a session tells: sizes, costs, decisions, differences. Commands print it, the inspector shows it."""
