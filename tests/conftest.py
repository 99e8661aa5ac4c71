"""What holds for every test: an Airflow home of its own, and no Google account of a person."""

from __future__ import annotations

import os
import tempfile

# Read when Airflow is imported, so it is set before any test module is.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-aiptraining-tests-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["CLOUDSDK_CONFIG"] = os.environ["AIRFLOW_HOME"]
os.environ["NO_GCE_CHECK"] = "true"
for name in ("GOOGLE_APPLICATION_CREDENTIALS", "AIRFLOW_CONN_AIPTRAINING_DEFAULT"):
    os.environ.pop(name, None)
