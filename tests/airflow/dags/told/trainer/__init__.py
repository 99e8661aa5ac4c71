"""Trains nothing; ends as it is told."""
