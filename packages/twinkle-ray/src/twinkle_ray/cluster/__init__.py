"""The Ray cluster: its start, its nodes, its environment and its watchdog."""
