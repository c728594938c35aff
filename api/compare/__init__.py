"""Routes that compare: devices, rooflines, sweeps, rankings."""
