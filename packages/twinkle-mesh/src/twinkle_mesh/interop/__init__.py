"""Meshes to and from torch and JSON."""
