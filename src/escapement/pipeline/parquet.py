"""Writing a job's result as Parquet to a new path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escapement.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_new(found: DataFrame, output: str) -> None:
    """Write a DataFrame as one Parquet file in the new directory ``output``.

    Raises:
      InvalidRequest: if ``output`` exists.
    """
    from pyspark.errors import AnalysisException

    try:
        # Spark Connect does not support the synonym "errorifexists".
        found.coalesce(1).write.mode("error").parquet(output)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise InvalidRequest(
            f"the output {output} already exists: give a path that does not exist"
        ) from None
