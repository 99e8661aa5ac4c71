"""The rules: what a job is, what its states mean, what it costs.

Pure: no Airflow, no Google libraries, no I/O, no clock.
"""
