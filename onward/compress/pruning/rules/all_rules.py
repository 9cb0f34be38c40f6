"""RULES: how each operator ties the axes of its inputs, outputs and weights.

An axis that a rule does not mention is pinned, and so are all axes of a node without a rule.
"""

from __future__ import annotations

from onward.compress.pruning.rules.attention import ATTENTION
from onward.compress.pruning.rules.convolution import CONVOLUTION
from onward.compress.pruning.rules.elementwise import ELEMENTWISE
from onward.compress.pruning.rules.linear import LINEAR
from onward.compress.pruning.rules.normalization import NORMALIZATION
from onward.compress.pruning.rules.parts import PARTS
from onward.compress.pruning.rules.recurrent import RECURRENT
from onward.compress.pruning.rules.shape import SHAPE

RULES = ATTENTION | CONVOLUTION | ELEMENTWISE | LINEAR | NORMALIZATION | PARTS | RECURRENT | SHAPE
