"""Device groups and device meshes: topology as pure-Python values."""
