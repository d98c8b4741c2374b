"""Meshes as pictures and in figures."""
