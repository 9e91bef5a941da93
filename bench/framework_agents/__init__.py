"""One module for each framework that bench/frameworks.py measures, and what they share."""
