"""Write a distributed post-training loop as plain Python over meshes of workers."""
