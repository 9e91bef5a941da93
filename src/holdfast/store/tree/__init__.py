"""The tree of a session's entries: the verbs over it, where new ones stand, what of a branch is opened."""
