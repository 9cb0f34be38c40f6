"""Checkpoints that a group of processes saves and loads together."""
