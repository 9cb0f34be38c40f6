"""Searches before a run: the learning rate, the batch size."""
