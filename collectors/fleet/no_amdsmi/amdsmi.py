"""Stands before an `amdsmi` without its library in the path of Ray's processes: see `cluster.amdsmi_is_broken`."""

raise ImportError("amdsmi is installed without libamd_smi.so")
