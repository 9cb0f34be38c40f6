"""Every torch kernel, and every shape computation that stays on the host."""

from __future__ import annotations

from onward.providers.torch.kernels import host as host_family
from onward.providers.torch.kernels import math

KERNELS = math.kernel
HOST = host_family.host
