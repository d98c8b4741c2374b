"""The arithmetic between coordinates, ranks and data."""
