"""Placement: the node and the device of each worker."""
