"""What a run does, worked out from the model, the data and the config before the first step."""
