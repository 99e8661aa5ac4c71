"""Train on the rows known by a date, measure, and write the model to the job's directory.

The training service runs this module as ``python -m trainer.task --job-dir gs://... <args>``.  You
can run it by hand as well, with a plain directory::

    python -m trainer.task --job-dir /tmp/model --known-by 2026-03-01

It writes two files there: ``model.joblib`` and ``metrics.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

FIRST_DAY = date(2026, 1, 1)
ROWS_ON_FIRST_DAY = 100


def main(argv: list[str] | None = None) -> None:
    """Parse the arguments, train, write the model and its metrics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job-dir", required=True, help="gs://bucket/path, or a directory")
    parser.add_argument("--known-by", required=True, type=date.fromisoformat, metavar="YYYY-MM-DD")
    parser.add_argument("--regularization", type=float, default=1.0, help="larger: simpler model")
    parser.add_argument("--max-iter", type=int, default=1000)
    args = parser.parse_args(argv)
    # Before the slow imports, so that the log shows at once that the trainer runs.
    print(f"Training on the rows known by {args.known_by}", flush=True)

    model, metrics = train(args.known_by, args.regularization, args.max_iter)
    print(f"Trained: {json.dumps(metrics)}", flush=True)
    write(args.job_dir, model, metrics)
    print(f"Wrote model.joblib and metrics.json to {args.job_dir}", flush=True)


def train(known_by: date, regularization: float, max_iter: int) -> tuple[Any, dict[str, Any]]:
    """Return a fitted model and its metrics."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, labels = load_breast_cancer(return_X_y=True)
    rows = known_rows(len(labels), known_by)
    # Every fourth row is for measuring.  A row stays on its side for ever, whatever the date, so
    # that the metrics of two dates can be compared.
    measured = rows[3::4]
    learned = np.setdiff1d(rows, measured)

    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=1 / regularization, max_iter=max_iter)
    )
    model.fit(features[learned], labels[learned])
    metrics = {
        "accuracy": float(accuracy_score(labels[measured], model.predict(features[measured]))),
        "auc": float(
            roc_auc_score(labels[measured], model.predict_proba(features[measured])[:, 1])
        ),
        "known_by": known_by.isoformat(),
        "rows": len(rows),
    }
    return model, metrics


def known_rows(total: int, known_by: date) -> Any:
    """Return the rows known by a date: 100 on the first day, then one more each day.

    The table has no dates of its own, so we give it some: rows come in an order that is always the
    same.  A backfill of January thus trains on what was known in January.
    """
    import numpy as np

    days = (known_by - FIRST_DAY).days
    if days < 0:
        sys.exit(f"No row is known by {known_by}: the first ones came in on {FIRST_DAY}.")
    order_of_arrival = np.random.RandomState(3).permutation(total)
    return order_of_arrival[: ROWS_ON_FIRST_DAY + days]


def write(job_dir: str, model: object, metrics: dict[str, object]) -> None:
    """Write ``model.joblib`` and ``metrics.json`` to a directory or to Cloud Storage."""
    import joblib

    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch) if job_dir.startswith("gs://") else Path(job_dir)
        local.mkdir(parents=True, exist_ok=True)
        joblib.dump(model, local / "model.joblib")
        (local / "metrics.json").write_text(json.dumps(metrics))
        if job_dir.startswith("gs://"):
            from google.cloud import storage

            bucket_name, _, prefix = job_dir[len("gs://") :].rstrip("/").partition("/")
            bucket = storage.Client().bucket(bucket_name)
            for name in ("model.joblib", "metrics.json"):
                path = f"{prefix}/{name}" if prefix else name
                bucket.blob(path).upload_from_filename(str(local / name))


if __name__ == "__main__":
    main()
