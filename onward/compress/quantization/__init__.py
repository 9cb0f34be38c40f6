"""Quantization: int8, 4 and 2 bit weights, 16-bit floats; what does not pay is undone."""
