"""What is known of a conversation at one leaf of its log, and what a request shows of it."""
