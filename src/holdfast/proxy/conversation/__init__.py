"""Find the stored session that a request belongs to, and keep its branch in memory."""
