"""Rewrites of a model only for stock onnxruntime: forms that its CPU kernels run faster."""
