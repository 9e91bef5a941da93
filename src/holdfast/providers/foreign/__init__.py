"""Recognize content that was written for another API, refuse it where it would be lost, and convert it."""
