"""Checkpoints that several processes write together, each a part, and that load into any layout."""
