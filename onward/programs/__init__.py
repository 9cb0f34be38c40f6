"""Training programs: a model, a loss and an optimizer, compiled for any engine."""
