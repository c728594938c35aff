"""Running the graphs of an artifact: the compiled engine, or onnxruntime."""
