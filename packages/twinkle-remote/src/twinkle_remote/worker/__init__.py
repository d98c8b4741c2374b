"""What runs on a worker: a task with its inputs."""
