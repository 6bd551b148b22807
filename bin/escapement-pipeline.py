#!python
"""What is given to spark-submit to run a job on a cluster: `escapement pipeline`, as a file.

    spark-submit --master … "$(command -v escapement-pipeline.py)" forecast orders --by day

Installing the package puts it beside the command `escapement`. It is not in the package,
because Python looks for modules first where the file lies that it runs.
"""

import sys

from escapement.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["pipeline", *sys.argv[1:]]))
