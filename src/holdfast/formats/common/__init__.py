"""What the formats have in common: lines, the log that readers collect, what writers need of it."""
