"""Waiting for jobs and models of other tasks."""
