"""Metrics: numbers that say how well a model's outputs agree with the targets."""
