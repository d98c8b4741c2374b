"""Reading: from indices to a batch, with retries and the randomness of samples."""
