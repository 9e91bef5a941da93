"""Trajectories of mini-swe-agent (``*.traj.json``)."""
