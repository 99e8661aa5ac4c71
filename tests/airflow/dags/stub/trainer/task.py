"""Ends as it is told: ``--fail-unless TEXT --in TEXT --seconds N``."""

from __future__ import annotations

import argparse
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--fail-unless", default="", help="this text must be within --text")
parser.add_argument("--text", default="")
args = parser.parse_args()
print("the stub trainer runs", flush=True)
time.sleep(args.seconds)
if args.fail_unless not in args.text:
    print("the data of today is unreadable", file=sys.stderr, flush=True)
    sys.exit(7)
print("the stub trainer is done", flush=True)
