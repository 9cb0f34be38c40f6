"""onnxruntime.training.optim.fp16_optimizer's name."""

from onward.pytorch.optim.fp16_optimizer import FP16_Optimizer

__all__ = ["FP16_Optimizer"]
