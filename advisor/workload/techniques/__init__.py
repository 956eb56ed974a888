"""What options put into a workload: real PyTorch code that trains. Torch is imported at the top of each module here, so
an option imports them inside `apply` only."""
