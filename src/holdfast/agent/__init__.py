"""A small reference agent on the engine: a loop, nine tools, skills."""
