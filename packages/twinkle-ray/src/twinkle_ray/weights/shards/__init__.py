"""The shards of a rank: boxes, specs, shared memory, and digests of values."""
