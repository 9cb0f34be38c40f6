"""ZeRO: the processes of a group hold parts of slots, gradients and parameters."""
