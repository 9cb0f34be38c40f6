"""Quantize data and weights to 8 bits, written so that stock engines run integer kernels."""
