"""Environments that are JAX functions: one contract, the libraries that have them, and the stream of a batch."""
