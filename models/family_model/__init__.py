"""The parts of the model of one kernel family, and the artifact that holds them."""
