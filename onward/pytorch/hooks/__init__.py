"""Subscribers: code that sees the inputs and outputs of every submodule, step by step."""
