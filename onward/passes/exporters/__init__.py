"""Undo what exporters did to a model: to its parameters, and operators of no standard."""
