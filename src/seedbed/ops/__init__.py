"""Arithmetic of reinforcement learning: pure functions over one trajectory ``[T]``; the caller vmaps."""
