"""`python -P -m spark_jobs.setup`: makes the data plane ready: Java, Delta's jars, S3's for an S3 store."""

from __future__ import annotations

import sys
import time

from bloomery.config.settings import settings
from bloomery.errors import BloomeryError
from spark_jobs.jars import delta_jars, s3a_jars
from spark_jobs.java import java_home


def main() -> int:
    """Prints a line a step; 1 and an error with its remedy where one fails."""
    home, began = settings().home, time.monotonic()
    try:
        java = java_home(home)
        print(f"Java: {java}", flush=True)
        jars = delta_jars(home, java)
        if settings().store_uri.startswith("s3://"):
            print("Fetching the S3 jars, 640 MB, once ...", flush=True)
            jars += s3a_jars(home, java)
    except BloomeryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Jars: {', '.join(jar.name for jar in jars)} ({time.monotonic() - began:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
