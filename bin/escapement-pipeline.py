#!python
"""The command `escapement pipeline` as a file for spark-submit, to run a job on a cluster.

    spark-submit --master … "$(command -v escapement-pipeline.py)" forecast orders --by day

The package installs this file beside the command `escapement`. The file is not inside the package,
because Python searches the directory of the file that it runs first when it imports modules.
"""

import sys

from escapement.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["pipeline", *sys.argv[1:]]))
