"""One file per regressor, each with `REGRESSOR = ...`; found by `kernelcast.models.regressor.regressors`."""
