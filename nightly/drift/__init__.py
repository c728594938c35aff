"""What has changed since the rows were measured: devices, inputs, models; and which rows may be learned from together."""
