"""Models of the zoo for other backends: ONNX files, TensorRT plans, and the configurations that serve them."""
