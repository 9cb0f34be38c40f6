"""Mixed precision: the forward pass in bfloat16 or float16, with float32 parameters."""
