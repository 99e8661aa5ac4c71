"""Waiting for training jobs without holding a worker."""
