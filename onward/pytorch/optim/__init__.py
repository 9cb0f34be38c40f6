"""Optimizers for PyTorch parameters, and faster checks for the mixed-precision ones of others."""
