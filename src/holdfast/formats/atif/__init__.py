"""Trajectories in ATIF, the Agent Trajectory Interchange Format."""
