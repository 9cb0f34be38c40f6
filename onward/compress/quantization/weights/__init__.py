"""Weights of few bits, float data: see quantizer.py."""
