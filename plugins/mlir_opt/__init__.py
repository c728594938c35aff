"""mlir-opt: a C++ pass plug-in that annotates and tiles by predicted cost."""
