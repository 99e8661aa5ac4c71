"""The trainer as a Python package: the training service installs it, and what it requires."""

from setuptools import find_packages, setup

setup(
    name="breast-cancer-trainer",
    version="0.1",
    packages=find_packages(),
    install_requires=["scikit-learn", "joblib", "google-cloud-storage"],
    python_requires=">=3.7",
)
