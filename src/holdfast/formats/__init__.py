"""Pure: lines of recorded sessions to entries and back, one module for each tool."""
