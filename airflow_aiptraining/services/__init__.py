"""The verbs of a training service over google-api-python-client, in ML v1's language.

A service has five verbs: ``create_job``, ``get_job``, ``list_jobs``, ``cancel_job`` and
``log_entries``.  None of them sleeps or loops; :mod:`.retries` is the one place where calls are
repeated.
"""
