"""The wire: how a value becomes bytes and back, typed, versioned, and without pickle."""
