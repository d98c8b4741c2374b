"""The built-in backends: this process, and threads of this process."""
