"""Files that commands read and write: input files, session files and their repair, and the user's paths."""
