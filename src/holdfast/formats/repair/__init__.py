"""Repairs session files of other tools, so that the tool can go on with them."""
