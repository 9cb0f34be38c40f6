"""onnxruntime.training.optim.fused_adam's names."""

from onward.pytorch.optim.fused_adam import AdamWMode, FusedAdam

__all__ = ["AdamWMode", "FusedAdam"]
