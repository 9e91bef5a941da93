"""What is still open in a conversation: sub-agents, background shells, approvals, to-do items, unanswered words."""
