"""Tutti: distributed communication. `tutti.torch` is its backend of torch.distributed."""
