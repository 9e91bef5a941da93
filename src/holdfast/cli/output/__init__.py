"""What people and programs are shown: tables, JSON, errors, hints."""
