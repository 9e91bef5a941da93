"""The engine: stored sessions, and everything that sends requests. Async begins here."""
