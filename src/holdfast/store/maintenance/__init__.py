"""Work on a whole store of any kind: copying it into another, checking it, measuring it, bringing it up to date."""
