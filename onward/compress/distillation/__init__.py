"""Distillation: train a small model to answer like a large one."""
