"""Remove whole channels, heads, units and layers from any ONNX graph, through coupled axes."""
