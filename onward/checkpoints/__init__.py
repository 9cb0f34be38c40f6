"""Checkpoints: files of named tensors, whole or not there, that say when they are damaged."""
