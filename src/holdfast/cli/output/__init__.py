"""Terminal output: tables, JSON, errors and hints."""
