"""The command line of the stress test: ``make stress MINUTES=5 ENGINE=sqlite SEED=1``."""

from __future__ import annotations

import argparse
import secrets
import sys

from stress.run import ENGINES, run


def main() -> int:
    """Run once on each engine asked for; return 1 if one of the runs failed."""
    parser = argparse.ArgumentParser(prog="make stress", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of traffic (default: 5)")
    parser.add_argument("--engine", choices=[*ENGINES, "both"], default="both")
    parser.add_argument("--seed", type=int, help="of the clients and troubles (default: random)")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    engines = ENGINES if options.engine == "both" else [options.engine]
    failures = sum(run(options.minutes, engine, seed) for engine in engines)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
