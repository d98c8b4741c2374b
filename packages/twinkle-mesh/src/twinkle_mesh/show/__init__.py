"""Pictures of meshes, and the costs of their collectives."""
