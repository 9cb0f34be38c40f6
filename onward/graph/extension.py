"""The former name of onward.graph.graph_ops; it will be removed in the next release."""

from __future__ import annotations

from onward.graph.graph_ops import GraphOps as GraphOps
from onward.graph.graph_ops import Size as Size
from onward.graph.graph_ops import axes_of as axes_of
from onward.graph.graph_ops import extend as extend
from onward.graph.graph_ops import numpy_type as numpy_type
from onward.graph.graph_ops import rank as rank
from onward.graph.graph_ops import taken_names as taken_names
