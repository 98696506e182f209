"""Models: from a checkpoint to packed weights and a forward pass."""
