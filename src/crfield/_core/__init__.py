"""What every room builds on: checks, threads, memory, optimizers and the compiled core."""
