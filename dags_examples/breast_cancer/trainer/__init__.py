"""Trains a classifier on scikit-learn's breast-cancer table."""
