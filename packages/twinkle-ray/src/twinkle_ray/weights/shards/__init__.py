"""What a rank holds of each tensor: boxes, specs, shared memory, and digests of values."""
