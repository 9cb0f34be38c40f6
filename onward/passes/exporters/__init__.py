"""Undo what exporters did to a model's parameters."""
