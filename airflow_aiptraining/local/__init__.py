"""The embedded training service: ML v1 jobs, log entries and Cloud Storage on one loopback port.

``app.create_app`` puts the surfaces together; ``serve`` runs them.  The routing tables are the
list of what is supported.  Nothing here imports Airflow or the hooks: the service is an ordinary
endpoint, and Google's own clients are the judge of it.
"""
