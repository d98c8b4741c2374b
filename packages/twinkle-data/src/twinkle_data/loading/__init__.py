"""Loading: in the process of the loop, in loader processes, or on a remote group."""
