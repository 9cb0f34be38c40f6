"""Trainer: Hugging Face Trainer's arguments and methods, with whole steps as one program."""
