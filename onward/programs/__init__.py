"""Programs: a model, a loss and an optimizer compiled for training, for any engine."""
