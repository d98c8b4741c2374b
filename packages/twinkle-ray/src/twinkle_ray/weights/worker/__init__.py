"""The part of a sync that runs on the workers."""
