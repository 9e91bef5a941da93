"""The policies of other tools, and the stages that only they use."""
