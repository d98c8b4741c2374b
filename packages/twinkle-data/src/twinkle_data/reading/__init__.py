"""From indices to a batch: reading, retries and the randomness of samples."""
