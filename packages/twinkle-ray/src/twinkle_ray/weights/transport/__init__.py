"""Where staged blocks are: in the process, in the backend's store, in messages of NCCL or of torchrun's own group."""
