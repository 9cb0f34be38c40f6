"""Learned rounding: train the integers and the scales of a quantized model."""
