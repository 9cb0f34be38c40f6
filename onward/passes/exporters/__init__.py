"""What exporters did to parameters, undone where the model shows it."""
