"""A data loader that knows the device mesh: exact, resumable, elastic."""
