"""The part of a sync that runs on a worker."""
