"""FP16 and BF16: computed in 16 bits where an engine has such kernels, else stored in 16 bits."""
