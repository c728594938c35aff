"""Many different Triton programs, in many configurations: what is compiled for its registers, spills and instructions."""
