"""A trainer that needs nothing but the standard library, so that its environment is made fast."""

from setuptools import find_packages, setup

setup(name="told-trainer", version="0.1", packages=find_packages())
