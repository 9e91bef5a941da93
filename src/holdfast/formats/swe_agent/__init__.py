"""Trajectories of SWE-agent (``*.traj``)."""
