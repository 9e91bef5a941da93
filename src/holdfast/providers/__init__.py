"""Pure translation between provider bodies and values, one module for each API."""
