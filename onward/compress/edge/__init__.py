"""Edge: a model as a folder for a browser, a phone, Node or a reduced build of onnxruntime."""
