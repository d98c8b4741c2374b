"""The arithmetic of coordinates, ranks and data order."""
