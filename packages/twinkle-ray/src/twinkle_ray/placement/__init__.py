"""Which worker runs on which node and device."""
