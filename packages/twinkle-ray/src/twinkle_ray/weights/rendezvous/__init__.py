"""Where the processes of a sync meet: a store, sessions, and heartbeats."""
