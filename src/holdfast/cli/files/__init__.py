"""Files that commands are given and write: where they lie, sessions in them, a session file that is repaired."""
