"""Ends when a test says so: ``--end FILE`` names a file that is made then and holds the exit code.

It fails as well when the file's folder is gone: nobody is left to say anything.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--end", type=Path, required=True)
args = parser.parse_args()
print("the trainer waits for", args.end, flush=True)
while args.end.parent.is_dir():
    if args.end.exists():
        sys.exit(int(args.end.read_text()))
    time.sleep(0.2)
sys.exit("nobody is left to say anything")
