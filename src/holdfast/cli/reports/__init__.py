"""What commands show of a session: sizes, differences, histories, accounts."""
