"""Which session a request belongs to, and the branches that are held in memory."""
