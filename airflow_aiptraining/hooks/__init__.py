"""From an Airflow connection to credentials, endpoints, a service and object storage."""
