"""What coding agents that load plugins hand over: a transcript, and its compaction. Their plugins are in
``integrations/hosts``.
"""
