"""onnxruntime.training.utils.data.sampler's names."""

from onward.pytorch.samplers import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)

__all__ = ["LoadBalancingDistributedBatchSampler", "LoadBalancingDistributedSampler"]
