"""What was written for one API and is met in the body of another."""
