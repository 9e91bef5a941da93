"""The policy of OpenClaw: settings and rules, pruning, images, and the check before each request."""
