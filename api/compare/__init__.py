"""Routes that compare: devices, rooflines, sweeps, rankings, steps of models and programs."""
