"""The policy of OpenClaw: its settings and rules, its pruning, its images, and what it does before a request."""
