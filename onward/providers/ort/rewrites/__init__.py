"""Rewrites of a model for stock onnxruntime alone: forms that its CPU kernels run faster."""
