// No extension is there: MPI's stand-in does not know GPUs.
