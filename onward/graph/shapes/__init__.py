"""Infer types and shapes of values.

infer.py             a whole model, with ONNX
fast.py              one node of a common operator, without ONNX
node_inference.py    one node: fast.py, ml_operators.py, else ONNX
declared.py          a whole model only from inputs and weights; declared shapes are hints
loops.py             values that loops carry
subgraph_sizes.py    in and out of If, Loop and Scan, for estimates
value_dependent.py   shapes that depend on computed values, for estimates
substitutes.py       operators that ONNX cannot infer
ml_operators.py      operators of ai.onnx.ml

Two inferences are above this package, because they need it and more: gradients/formula_shapes.py
(the formulas of gradient rules) and gradients/computed_ranks.py (constant folding).
"""
