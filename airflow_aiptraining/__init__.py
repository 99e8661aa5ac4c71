"""Apache Airflow provider for AI Platform Training (ML v1) jobs."""

__version__ = "0.1.0"
