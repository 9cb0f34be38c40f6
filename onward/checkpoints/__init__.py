"""Checkpoints: files of named tensors, written atomically and verified when they are read."""
