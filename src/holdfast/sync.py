"""The engine for programs without an event loop: the same methods, and no ``async``.

``with open_engine("agent.db", ...) as engine`` takes what ``Engine.open`` takes.
"""

from holdfast.engine.sync import SyncEngine, SyncRun, SyncSession, open_engine

__all__ = ["SyncEngine", "SyncRun", "SyncSession", "open_engine"]
