"""How gradients are sent between processes: in fewer bytes."""
