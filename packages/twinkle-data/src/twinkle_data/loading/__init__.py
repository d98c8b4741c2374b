"""Where a loader reads: in this process, in loader processes, or on a remote group."""
